// The operators of the dense block and of the loss, with autograd. From Python the same functions
// are torch.ops.tautline.NAME. CPU tensors run our vectorised kernels, CUDA tensors ours for CUDA;
// float32, bfloat16 and float16 in, the same type out, FP32 inside (weights and their gradients may
// be FP32 beside bf16 activations). Results are bitwise equal from run to run and for any number of
// threads.
//
// T tokens, B sequences, H heads, D head dimension, C channels, F feed-forward width, N targets,
// V classes, K negatives, E embedding dimension. Offsets and ids are int64.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace tautline::ops {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// ---- attention ----------------------------------------------------------------------------------

/// Which keys a query sees, and what is added to the scores.
struct AttentionOptions {
  bool causal = false;  // a sequence's last query sees its last key, the one before up to the one
                        // before, ...: query i of nq lies at key position p = i + nk - nq
  int64_t window_left = -1, window_right = -1;  // keys p - left .. p + right; -1: no bound
  OptionalTensor position_bias;   // [H or 1, 2R - 1]: entry R - 1 + clamp(p - j, -(R - 1), R - 1)
  OptionalTensor time_bias;       // [H or 1, N]: entry of |q_time[i] - k_time[j]|, two an octave
                                  // (kernels/attention_problem.h, time_bucket)
  OptionalTensor q_time, k_time;  // [Tq], [Tk] int64, with time_bias
  OptionalTensor order;           // of attention_order, made once a batch; none: the call makes it
  bool fast = false;  // gdpa on Hopper: silu and gelu_tanh by tanh.approx, f(s) off by 2^-12 |s|,
                      // in bf16 f'(s) too (kernels/attention_sm90/backward_pointwise.cuh)
};

/// o_i = sum_j softmax_j(scale q_i . k_j + bias) v_j. q [Tq, H, D], k [Tk, G, D], v [Tk, G, E], H a
/// multiple of G; strided views of one packed projection are taken as they are. Offsets [B + 1];
/// without q_offsets q [S, H, D] stands in for every sequence (learned seeds). max_q and max_k: the
/// longest lengths. -> [Tq or B * S, H, E]
Tensor jagged_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const OptionalTensor& q_offsets, const Tensor& k_offsets, int64_t max_q,
                        int64_t max_k, double scale, const AttentionOptions& options);
/// The same with nothing but causality: q, k, v [T, H, D].
Tensor jagged_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& q_offsets,
                        const Tensor& k_offsets, int64_t max_q, int64_t max_k, bool causal,
                        double scale);

/// o_i = beta sum_j f(alpha q_i . k_j + bias) v_j, the rest as jagged_attention. f: identity, relu,
/// squared_relu, silu, gelu, gelu_tanh, leaky_relu, hard_swish.
Tensor gdpa(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& q_offsets,
            const Tensor& k_offsets, int64_t max_q, int64_t max_k, std::string_view activation,
            double alpha, double beta, const AttentionOptions& options);

/// Attention of a packed projection on itself: qkv [T, 3, H, D] -> [T, H, D]. q and k turn by
/// `position` [T] as rope() does, where given; then jagged_attention (kind "softmax") or gdpa with
/// alpha = scale (kind: its activation). Nothing is copied between the projection and the kernels, nor
/// between the kernels and the projection's gradient. options.k_time is q_time.
Tensor self_attention(const Tensor& qkv, const OptionalTensor& position, double rope_base,
                      const Tensor& offsets, int64_t longest, std::string_view kind, double scale,
                      double beta, const AttentionOptions& options);

/// Softmax attention inside blocks of 64 tokens from each sequence's start. q [T, H, D], k, v [T,
/// G, D], offsets [B + 1]. rope: none, half_split or interleaved: q and k (and v where
/// rotate_values) are turned by their place in the sequence as they are loaded. -> [T, H, D]
Tensor block_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& offsets,
                       bool causal, double scale, std::string_view rope = "none",
                       double rope_base = 10000.0, bool rotate_values = false);

/// qkv [T, 3, H, D], position [T] -> the same with q and k rotated
/// (half-split; angle = position * base^(-2 d / D)).
Tensor rope(const Tensor& qkv, const Tensor& position, double base);

// ---- norms --------------------------------------------------------------------------------------

/// x [T, C], weight [C]
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps);
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);
/// (s, norm(s)) of s = x + residual.
std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual,
                                        const Tensor& weight, double eps);
std::tuple<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& residual,
                                          const Tensor& weight, const Tensor& bias, double eps);

// ---- feed-forward -------------------------------------------------------------------------------

/// x [T, 2F] -> silu(x[:, :F]) * x[:, F:], [T, F]. `bias` [2F] is added first.
Tensor swiglu(const Tensor& x, const OptionalTensor& bias = std::nullopt);
/// x [T, F] -> x * Phi(x) (erf form). `bias` [F] is added first.
Tensor gelu(const Tensor& x, const OptionalTensor& bias = std::nullopt);

// ---- dropout ------------------------------------------------------------------------------------

/// x [T, C] with channels zeroed with probability p and the others divided by 1 - p. The mask
/// depends on (seed, step, site, sample, position, channel) alone; `site` numbers the places of the
/// network. sample, position [T]. p = 0 returns x.
Tensor dropout(const Tensor& x, double p, int64_t seed, int64_t step, int64_t site,
               const Tensor& sample, const Tensor& position);
/// residual + dropout(x + bias), fused.
Tensor dropout_add(const Tensor& x, const OptionalTensor& bias, const Tensor& residual, double p,
                   int64_t seed, int64_t step, int64_t site, const Tensor& sample,
                   const Tensor& position);

// ---- losses -------------------------------------------------------------------------------------
// All are sums over rows (0-dim float32); the caller divides by the step's global count. Their
// gradients are computed with the forward, chunk by chunk: no [N, V] matrix ever exists.

/// x [N, E] -> x / max(|x|, 1e-12)
Tensor l2_normalize(const Tensor& x);

/// A learned number on the scores of the classes that row n's history holds already
/// (kernels/repeat_bias.h): bias [1] float32; the row's classes are column[first[n]] ..
/// column[last[n] - 1], distinct, -1 where a class is of another shard. column [U], first and last
/// [N] int64. All undefined: no such number.
struct Repeats {
  Tensor bias, column, first, last;
  bool defined() const { return bias.defined(); }
};

/// - sum_n log softmax((h_n . items + repeat bias) / temperature)[target_n]; items [V, E]; target
/// [N] row of items. normalize: rows of h and items are L2-normalised first.
Tensor full_softmax(const Tensor& h, const Tensor& items, const Tensor& target, double temperature,
                    bool normalize, const Repeats& repeats = {});

/// Row n's classes: its positive and the K shared negatives. x = h . e / temperature - log q.
/// h, positive [N, E], negative [K, E], target_id [N], negative_id [K]; log_q_positive [N] and
/// log_q_negative [K]: log of a candidate's sampling probability, or nullopt.
/// remove_hits: a negative that is the row's own target does not count.
Tensor sampled_softmax(const Tensor& h, const Tensor& positive, const Tensor& negative,
                       const Tensor& target_id, const Tensor& negative_id,
                       const OptionalTensor& log_q_positive, const OptionalTensor& log_q_negative,
                       double temperature, bool normalize, bool remove_hits);

/// The vocabulary shard's part of a full softmax (no autograd; h and items already normalised where
/// wanted): items [Vlocal, E], target_local [N], -1 where the row's class is not here.
/// -> max [N], sum of exp(x - max) [N], target logit [N] (0 where not here). An empty shard gives
/// max = -inf, sum = 0.
std::tuple<Tensor, Tensor, Tensor> softmax_statistics(const Tensor& h, const Tensor& items,
                                                      const Tensor& target_local,
                                                      double temperature,
                                                      const Repeats& repeats = {});
/// lse [N]: log sum exp over all shards. -> d_h [N, E] and d_bias [1] (this shard's parts, to be
/// summed over shards; d_bias is empty without repeats) and d_items [Vlocal, E] of
/// scale * sum_n loss_n, as (d_h, d_items, d_bias).
std::tuple<Tensor, Tensor, Tensor> softmax_gradient(const Tensor& h, const Tensor& items,
                                                    const Tensor& lse, const Tensor& target_local,
                                                    double temperature, double scale,
                                                    const Repeats& repeats = {});

/// Sum over labels that are not NaN of binary cross entropy with logits; logits, label [N].
Tensor binary_loss(const Tensor& logits, const Tensor& label);

}  // namespace tautline::ops
