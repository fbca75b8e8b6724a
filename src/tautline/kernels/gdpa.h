// Generalised dot-product attention over jagged sequences: o_i = beta * sum_j f(s_ij) v_j with
// s_ij = alpha * q_i . k_j + bias_ij, i and j tokens of the same sequence, j in the window of i.
// f is an activation instead of softmax's normalised exponential: no row maximum, no sum, nothing
// saved but q, k and v. With f = SiLU and beta = 1 / N it is HSTU's attention (Zhai et al. 2024,
// equation 2); with GELU the attention of Kunlun (arXiv 2602.10016) and of Meta's GDPA.
// Shapes, windows, grouped heads, broadcast queries, bias: attention_problem.h.
//
// f(0) = 0 for each f, so keys that are zeros with a zero bias add nothing.
// Backward: d_s = beta * f'(s) * (d_o . v); d_q = alpha d_s k; d_k = alpha d_s q; d_bias = d_s;
// d_v = beta f(s) d_o. At the corners of ReLU, leaky ReLU (0) and hard swish (-3, 3) f' is 0, 0.01,
// 0 and 1.
// Precision: FP32 accumulation; CPU elements are FP32.
#pragma once

#include <cstdint>

#include "tautline/kernels/attention_problem.h"
#include "tautline/kernels/isa.h"

namespace tautline::kernels {

enum class ScoreActivation : int32_t {
  kIdentity,
  kRelu,
  kSquaredRelu,
  kSilu,
  kGelu,       // s Phi(s)
  kGeluTanh,   // s/2 (1 + tanh(sqrt(2/pi) (s + 0.044715 s^3)))
  kLeakyRelu,  // slope 0.01 below 0
  kHardSwish,  // s clamp(s + 3, 0, 6) / 6
};

struct Gdpa : AttentionProblem {
  ScoreActivation activation = ScoreActivation::kSilu;
  double alpha = 1.0, beta = 1.0;
};

void gdpa_forward_ref(const Gdpa& p);
void gdpa_backward_ref(const Gdpa& p);  // with its finish, but for d_q

/// Tasks [begin, end) of sequences * kv_heads; task = sequence * kv_heads + kv_head. Any split over
/// threads gives the same bits. The backward's sums over sequences are attention.h's
/// attention_bias_finish_cpu and broadcast_query_finish_cpu.
TAUTLINE_ISA_KERNEL(void gdpa_forward_cpu(const Gdpa& p, int64_t begin, int64_t end),
                    gdpa_forward_cpu(p, begin, end))
TAUTLINE_ISA_KERNEL(void gdpa_backward_cpu(const Gdpa& p, int64_t begin, int64_t end),
                    gdpa_backward_cpu(p, begin, end))

/// As jagged_attention_forward_cuda.
void gdpa_forward_cuda(const Gdpa& p);
void gdpa_backward_cuda(const Gdpa& p);

}  // namespace tautline::kernels
