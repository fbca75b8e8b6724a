// jagged_attention: on the CPU our kernel, on CUDA the one that attention_dispatch.h picks.
#include "tautline/kernels/attention.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tautline/base/error.h"
#include "tautline/ops/attention_compute.h"
#include "tautline/ops/attention_dispatch.h"
#include "tautline/ops/on_its_device.h"

namespace tautline::ops {
namespace {

using Pair = std::tuple<Tensor, Tensor>;
constexpr std::string_view kName = "jagged_attention";

void check(const AttentionArguments& a, double scale) {
  ops::check(a, kName);
  if (!(scale >= 0 && scale < INFINITY))
    throw user_error(kName, ": scale ", scale, " is not a number from 0");
}

bool uses_flash(const kernels::JaggedAttention& p, const Tensor& q) {
  return forward_choice(p, /*softmax=*/true, p.scale, capability_of(q)).kernel ==
         AttentionKernel::kFlash2;
}

}  // namespace

std::tuple<Tensor, Tensor> compute_attention(const AttentionArguments& a, double scale) {
  check(a, scale);
  const Tensor& q = a.q;
  const AttentionTensors tensors(a);
  kernels::JaggedAttention p;
  tensors.fill(p);
  p.scale = scale;
  Tensor o = at::empty({p.rows, p.heads, p.value_dim}, result_options(q));
  Tensor lse = at::empty({p.heads, p.rows}, float_like(q));
  p.o = heads_view(o);
  if (!q.is_cpu() && uses_flash(p, q)) return flash_forward(a, scale);
  p.lse = lse.mutable_data_ptr<float>();
  if (q.is_cpu()) {
    parallel(p.sequences * p.kv_heads, task_cost(p),
             [&](int64_t i, int64_t j) { kernels::jagged_attention_forward_cpu(p, i, j); });
  } else {
    attention_forward_cuda(p, a);
  }
  return {o.to(q.scalar_type()), lse};
}

AttentionGradients compute_attention_backward(const AttentionArguments& a, const Tensor& d_o,
                                              const Tensor& o, const Tensor& lse, double scale,
                                              const GradientViews& into) {
  const Tensor& q = a.q;
  const AttentionTensors tensors(a);
  kernels::JaggedAttention p;
  tensors.fill(p);
  p.scale = scale;
  const Tensor fo = heads_readable(o);
  p.o = heads_view(fo);
  if (!q.is_cpu() && uses_flash(p, q)) return placed(flash_backward(a, d_o, o, lse, scale), into);
  p.lse = const_cast<float*>(lse.const_data_ptr<float>());
  AttentionGradientTensors gradients(a, d_o, p, into);
  if (q.is_cpu()) {
    parallel(p.sequences * p.kv_heads, 2 * task_cost(p),
             [&](int64_t i, int64_t j) { kernels::jagged_attention_backward_cpu(p, i, j); });
  } else {
    attention_backward_cuda(p, a);
  }
  return gradients.finish();
}

namespace {

/// (o, lse [H, rows])
Pair attention_forward(const Tensor& q, const Tensor& k, const Tensor& v,
                       const OptionalTensor& q_offsets, const Tensor& k_offsets, int64_t max_q,
                       int64_t max_k, bool causal, double scale, int64_t window_left,
                       int64_t window_right, const OptionalTensor& position_bias,
                       const OptionalTensor& time_bias, const OptionalTensor& q_time,
                       const OptionalTensor& k_time, const OptionalTensor& order) {
  const AttentionArguments a{q,      k,      v,           q_offsets,    k_offsets,     max_q,
                             max_k,  causal, window_left, window_right, position_bias, time_bias,
                             q_time, k_time, order};
  return compute_attention(a, scale);
}

AttentionGradients attention_backward(const Tensor& d_o, const Tensor& o, const Tensor& lse,
                                      const Tensor& q, const Tensor& k, const Tensor& v,
                                      const OptionalTensor& q_offsets, const Tensor& k_offsets,
                                      int64_t max_q, int64_t max_k, bool causal, double scale,
                                      int64_t window_left, int64_t window_right,
                                      const OptionalTensor& position_bias,
                                      const OptionalTensor& time_bias, const OptionalTensor& q_time,
                                      const OptionalTensor& k_time, const OptionalTensor& order) {
  const AttentionArguments a{q,      k,      v,           q_offsets,    k_offsets,     max_q,
                             max_k,  causal, window_left, window_right, position_bias, time_bias,
                             q_time, k_time, order};
  return compute_attention_backward(a, d_o, o, lse, scale);
}

Pair forward_meta(const Tensor& q, const Tensor& k, const Tensor& v,
                  const OptionalTensor& q_offsets, const Tensor& k_offsets, int64_t max_q,
                  int64_t max_k, bool causal, double, int64_t window_left, int64_t window_right,
                  const OptionalTensor& position_bias, const OptionalTensor& time_bias,
                  const OptionalTensor& q_time, const OptionalTensor& k_time,
                  const OptionalTensor& order) {
  const AttentionArguments a{q,      k,      v,           q_offsets,    k_offsets,     max_q,
                             max_k,  causal, window_left, window_right, position_bias, time_bias,
                             q_time, k_time, order};
  return {at::empty_symint({a.rows(), q.sym_size(1), v.sym_size(2)}, q.options()),
          at::empty_symint({q.sym_size(1), a.rows()}, float_like(q))};
}
AttentionGradients backward_meta(const Tensor&, const Tensor&, const Tensor&, const Tensor& q,
                                 const Tensor& k, const Tensor& v, const OptionalTensor& q_offsets,
                                 const Tensor& k_offsets, int64_t max_q, int64_t max_k, bool causal,
                                 double, int64_t window_left, int64_t window_right,
                                 const OptionalTensor& position_bias,
                                 const OptionalTensor& time_bias, const OptionalTensor& q_time,
                                 const OptionalTensor& k_time, const OptionalTensor& order) {
  return gradients_meta({q, k, v, q_offsets, k_offsets, max_q, max_k, causal, window_left,
                         window_right, position_bias, time_bias, q_time, k_time, order});
}

Pair call_forward(const Tensor& q, const Tensor& k, const Tensor& v,
                  const OptionalTensor& q_offsets, const Tensor& k_offsets, int64_t max_q,
                  int64_t max_k, double scale, const AttentionOptions& o) {
  static const auto op =
      find_operator<decltype(attention_forward)>("tautline::jagged_attention_forward");
  return op.call(q, k, v, q_offsets, k_offsets, max_q, max_k, o.causal, scale, o.window_left,
                 o.window_right, o.position_bias, o.time_bias, o.q_time, o.k_time, o.order);
}

struct Attention : torch::autograd::Function<Attention> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& q, const Tensor& k,
                        const Tensor& v, const OptionalTensor& position_bias,
                        const OptionalTensor& time_bias, const OptionalTensor& q_offsets,
                        const Tensor& k_offsets, int64_t max_q, int64_t max_k, double scale,
                        const AttentionOptions& options) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto [o, lse] = call_forward(q, k, v, q_offsets, k_offsets, max_q, max_k, scale, options);
    const auto or_none = [](const OptionalTensor& x) { return x.value_or(Tensor()); };
    ctx->save_for_backward({o, lse, q, k, v, or_none(q_offsets), k_offsets, or_none(position_bias),
                            or_none(time_bias), or_none(options.q_time), or_none(options.k_time),
                            or_none(options.order)});
    ctx->saved_data["sizes"] = std::vector<int64_t>{max_q, max_k, options.causal,
                                                    options.window_left, options.window_right};
    ctx->saved_data["scale"] = scale;
    return o;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    static const auto op =
        find_operator<decltype(attention_backward)>("tautline::jagged_attention_backward");
    const auto s = ctx->get_saved_variables();
    const auto n = ctx->saved_data["sizes"].toIntVector();
    const auto [d_q, d_k, d_v, d_position, d_time] =
        op.call(gradients[0], s[0], s[1], s[2], s[3], s[4], if_defined(s[5]), s[6], n[0], n[1],
                n[2] != 0, ctx->saved_data["scale"].toDouble(), n[3], n[4], if_defined(s[7]),
                if_defined(s[8]), if_defined(s[9]), if_defined(s[10]), if_defined(s[11]));
    torch::autograd::variable_list result(11);
    result[0] = d_q;
    result[1] = d_k;
    result[2] = d_v;
    if (s[7].defined()) result[3] = d_position;
    if (s[8].defined()) result[4] = d_time;
    return result;
  }
};

AttentionOptions options_of(bool causal, int64_t window_left, int64_t window_right,
                            const OptionalTensor& position_bias, const OptionalTensor& time_bias,
                            const OptionalTensor& q_time, const OptionalTensor& k_time,
                            const OptionalTensor& order) {
  return {causal, window_left, window_right, position_bias, time_bias, q_time, k_time, order};
}

Tensor attention_plain(const Tensor& q, const Tensor& k, const Tensor& v,
                       const OptionalTensor& q_offsets, const Tensor& k_offsets, int64_t max_q,
                       int64_t max_k, bool causal, double scale, int64_t window_left,
                       int64_t window_right, const OptionalTensor& position_bias,
                       const OptionalTensor& time_bias, const OptionalTensor& q_time,
                       const OptionalTensor& k_time, const OptionalTensor& order) {
  return std::get<0>(call_forward(q, k, v, q_offsets, k_offsets, max_q, max_k, scale,
                                  options_of(causal, window_left, window_right, position_bias,
                                             time_bias, q_time, k_time, order)));
}
Tensor attention_autograd(const Tensor& q, const Tensor& k, const Tensor& v,
                          const OptionalTensor& q_offsets, const Tensor& k_offsets, int64_t max_q,
                          int64_t max_k, bool causal, double scale, int64_t window_left,
                          int64_t window_right, const OptionalTensor& position_bias,
                          const OptionalTensor& time_bias, const OptionalTensor& q_time,
                          const OptionalTensor& k_time, const OptionalTensor& order) {
  return jagged_attention(q, k, v, q_offsets, k_offsets, max_q, max_k, scale,
                          options_of(causal, window_left, window_right, position_bias, time_bias,
                                     q_time, k_time, order));
}

}  // namespace

Tensor jagged_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const OptionalTensor& q_offsets, const Tensor& k_offsets, int64_t max_q,
                        int64_t max_k, double scale, const AttentionOptions& options) {
  return Attention::apply(q, k, v, options.position_bias, options.time_bias, q_offsets, k_offsets,
                          max_q, max_k, scale, options);
}
Tensor jagged_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& q_offsets,
                        const Tensor& k_offsets, int64_t max_q, int64_t max_k, bool causal,
                        double scale) {
  AttentionOptions options;
  options.causal = causal;
  return jagged_attention(q, k, v, q_offsets, k_offsets, max_q, max_k, scale, options);
}

TORCH_LIBRARY_FRAGMENT(tautline, m) {
  m.def(
      "jagged_attention(Tensor q, Tensor k, Tensor v, Tensor? q_offsets, Tensor k_offsets, "
      "int max_q, int max_k, bool causal, float scale, int window_left=-1, int window_right=-1, "
      "Tensor? position_bias=None, Tensor? time_bias=None, Tensor? q_time=None, "
      "Tensor? k_time=None, Tensor? order=None) -> Tensor");
  m.def(
      "jagged_attention_forward(Tensor q, Tensor k, Tensor v, Tensor? q_offsets, Tensor k_offsets, "
      "int max_q, int max_k, bool causal, float scale, int window_left, int window_right, "
      "Tensor? position_bias, Tensor? time_bias, Tensor? q_time, Tensor? k_time, Tensor? order) -> "
      "(Tensor, Tensor)");
  m.def(
      "jagged_attention_backward(Tensor d_o, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, "
      "Tensor? q_offsets, Tensor k_offsets, int max_q, int max_k, bool causal, float scale, "
      "int window_left, int window_right, Tensor? position_bias, Tensor? time_bias, "
      "Tensor? q_time, Tensor? k_time, Tensor? order) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(tautline, CPU, m) {
  m.impl("jagged_attention_forward", attention_forward);
  m.impl("jagged_attention_backward", attention_backward);
}
TORCH_LIBRARY_IMPL(tautline, CUDA, m) {
  m.impl("jagged_attention_forward", on_its_device<attention_forward>);
  m.impl("jagged_attention_backward", on_its_device<attention_backward>);
}
TORCH_LIBRARY_IMPL(tautline, Meta, m) {
  m.impl("jagged_attention_forward", forward_meta);
  m.impl("jagged_attention_backward", backward_meta);
}
TORCH_LIBRARY_IMPL(tautline, CompositeExplicitAutograd, m) {
  m.impl("jagged_attention", attention_plain);
}
TORCH_LIBRARY_IMPL(tautline, Autograd, m) { m.impl("jagged_attention", attention_autograd); }

}  // namespace tautline::ops
