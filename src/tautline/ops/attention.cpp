// jagged_attention: our kernel on the CPU; on CUDA libtorch's variable-length FlashAttention-2
// (bf16 and fp16), until our own stands behind the same function.
#include "tautline/kernels/attention.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tautline/base/error.h"
#include "tautline/ops/ops.h"
#include "tautline/ops/support.h"

namespace tautline::ops {
namespace {

using Pair = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

void check(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& q_offsets,
           const Tensor& k_offsets) {
  if (q.dim() != 3 || k.dim() != 3 || k.sizes() != v.sizes() || q.size(1) != k.size(1) ||
      q.size(2) != k.size(2))
    throw user_error("jagged_attention: q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes(),
                     " are not [Tq, H, D], [Tk, H, D], [Tk, H, D]");
  if (q_offsets.dim() != 1 || q_offsets.sizes() != k_offsets.sizes() || q_offsets.numel() < 1)
    throw user_error("jagged_attention: offsets ", q_offsets.sizes(), " and ", k_offsets.sizes(),
                     " are not both [B + 1]");
  if (q.is_cpu()) {
    check_offsets(q_offsets, q.size(0));
    check_offsets(k_offsets, k.size(0));
  } else if (q.scalar_type() == at::kFloat) {
    throw user_error("jagged_attention: float32 on CUDA; bfloat16 or float16 is needed");
  }
}

/// FP32 with unit stride along D: a view of the input wherever that is possible.
Tensor heads_readable(const Tensor& x) {
  const Tensor f = x.to(at::kFloat);
  return f.stride(2) == 1 || f.size(2) == 1 ? f : f.contiguous();
}
kernels::HeadsView view(const Tensor& x) {
  return {const_cast<void*>(x.const_data_ptr()), x.stride(0), x.stride(1)};
}

kernels::JaggedAttention make_params(const Tensor& q, const Tensor& k, const Tensor& v,
                                     const Tensor& q_offsets, const Tensor& k_offsets,
                                     int64_t max_q, int64_t max_k, bool causal, double scale) {
  kernels::JaggedAttention p;
  p.q = view(q);
  p.k = view(k);
  p.v = view(v);
  p.q_offsets = q_offsets.const_data_ptr<int64_t>();
  p.k_offsets = k_offsets.const_data_ptr<int64_t>();
  p.sequences = q_offsets.numel() - 1;
  p.heads = q.size(1);
  p.head_dim = q.size(2);
  p.q_tokens = q.size(0);
  p.k_tokens = k.size(0);
  p.max_q = max_q;
  p.max_k = max_k;
  p.causal = causal;
  p.scale = scale;
  p.element = element_of(q);
  return p;
}

/// Elements of one task of the CPU kernel, for the grain: scores of a mean sequence.
int64_t task_cost(const kernels::JaggedAttention& p) {
  const int64_t sequences = std::max<int64_t>(1, p.sequences);
  return (p.q_tokens / sequences + 1) * (p.k_tokens / sequences + 16) * 8;
}

/// (o, lse [H, Tq])
Pair attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& q_offsets,
                       const Tensor& k_offsets, int64_t max_q, int64_t max_k, bool causal,
                       double scale) {
  check(q, k, v, q_offsets, k_offsets);
  if (!q.is_cpu()) {
    if (q.numel() == 0 || k.numel() == 0)
      return {at::zeros(q.sizes(), q.options()), at::zeros({q.size(1), q.size(0)}, float_like(q))};
    auto [o, lse, rng, unused, debug] =
        at::_flash_attention_forward(q, k, v, q_offsets.to(at::kInt), k_offsets.to(at::kInt), max_q,
                                     max_k, 0.0, causal, false, scale);
    return {o, lse};
  }
  const Tensor fq = heads_readable(q), fk = heads_readable(k), fv = heads_readable(v);
  const Tensor qo = q_offsets.contiguous(), ko = k_offsets.contiguous();
  Tensor o = at::empty(q.sizes(), float_like(q));
  Tensor lse = at::empty({q.size(1), q.size(0)}, float_like(q));
  auto p = make_params(fq, fk, fv, qo, ko, max_q, max_k, causal, scale);
  p.o = view(o);
  p.lse = lse.mutable_data_ptr<float>();
  parallel(p.sequences * p.heads, task_cost(p),
           [&](int64_t i, int64_t j) { kernels::jagged_attention_forward_cpu(p, i, j); });
  return {o.to(q.scalar_type()), lse};
}

Three attention_backward(const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v,
                         const Tensor& o, const Tensor& lse, const Tensor& q_offsets,
                         const Tensor& k_offsets, int64_t max_q, int64_t max_k, bool causal,
                         double scale) {
  if (!q.is_cpu()) {
    if (q.numel() == 0 || k.numel() == 0)
      return {at::zeros(q.sizes(), q.options()), at::zeros(k.sizes(), k.options()),
              at::zeros(v.sizes(), v.options())};
    const Tensor rng = at::zeros({2}, q.options().dtype(at::kUInt64));
    return at::_flash_attention_backward(d_o.contiguous(), q, k, v, o, lse, q_offsets.to(at::kInt),
                                         k_offsets.to(at::kInt), max_q, max_k, 0.0, causal, rng,
                                         at::empty({0}, q.options()), scale);
  }
  const Tensor fq = heads_readable(q), fk = heads_readable(k), fv = heads_readable(v);
  const Tensor qo = q_offsets.contiguous(), ko = k_offsets.contiguous();
  const Tensor fo = heads_readable(o), fd = heads_readable(d_o);
  auto p = make_params(fq, fk, fv, qo, ko, max_q, max_k, causal, scale);
  Tensor d_q = at::empty(q.sizes(), float_like(q)), d_k = at::empty(k.sizes(), float_like(q));
  Tensor d_v = at::empty(v.sizes(), float_like(q));
  p.o = view(fo);
  p.lse = const_cast<float*>(lse.const_data_ptr<float>());
  p.d_o = view(fd);
  p.d_q = view(d_q);
  p.d_k = view(d_k);
  p.d_v = view(d_v);
  parallel(p.sequences * p.heads, 2 * task_cost(p),
           [&](int64_t i, int64_t j) { kernels::jagged_attention_backward_cpu(p, i, j); });
  const auto type = q.scalar_type();
  return {d_q.to(type), d_k.to(type), d_v.to(type)};
}

Tensor like(const Tensor& x) { return at::empty_symint(x.sym_sizes(), x.options()); }
Pair forward_meta(const Tensor& q, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                  int64_t, int64_t, bool, double) {
  return {like(q), at::empty_symint({q.sym_size(1), q.sym_size(0)}, float_like(q))};
}
Three backward_meta(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&,
                    const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t, bool, double) {
  return {like(q), like(k), like(v)};
}

Pair call_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& q_offsets,
                  const Tensor& k_offsets, int64_t max_q, int64_t max_k, bool causal,
                  double scale) {
  static const auto op =
      find_operator<decltype(attention_forward)>("tautline::jagged_attention_forward");
  return op.call(q, k, v, q_offsets, k_offsets, max_q, max_k, causal, scale);
}

struct Attention : torch::autograd::Function<Attention> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& q, const Tensor& k,
                        const Tensor& v, const Tensor& q_offsets, const Tensor& k_offsets,
                        int64_t max_q, int64_t max_k, bool causal, double scale) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto [o, lse] = call_forward(q, k, v, q_offsets, k_offsets, max_q, max_k, causal, scale);
    ctx->save_for_backward({q, k, v, o, lse, q_offsets, k_offsets});
    ctx->saved_data["max_q"] = max_q;
    ctx->saved_data["max_k"] = max_k;
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["scale"] = scale;
    return o;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    static const auto op =
        find_operator<decltype(attention_backward)>("tautline::jagged_attention_backward");
    const auto s = ctx->get_saved_variables();
    const auto [d_q, d_k, d_v] =
        op.call(gradients[0], s[0], s[1], s[2], s[3], s[4], s[5], s[6],
                ctx->saved_data["max_q"].toInt(), ctx->saved_data["max_k"].toInt(),
                ctx->saved_data["causal"].toBool(), ctx->saved_data["scale"].toDouble());
    return {d_q, d_k, d_v, Tensor(), Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

Tensor attention_plain(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& q_offsets,
                       const Tensor& k_offsets, int64_t max_q, int64_t max_k, bool causal,
                       double scale) {
  return std::get<0>(call_forward(q, k, v, q_offsets, k_offsets, max_q, max_k, causal, scale));
}

}  // namespace

Tensor jagged_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& q_offsets,
                        const Tensor& k_offsets, int64_t max_q, int64_t max_k, bool causal,
                        double scale) {
  return Attention::apply(q, k, v, q_offsets, k_offsets, max_q, max_k, causal, scale);
}

TORCH_LIBRARY_FRAGMENT(tautline, m) {
  m.def(
      "jagged_attention(Tensor q, Tensor k, Tensor v, Tensor q_offsets, Tensor k_offsets, "
      "int max_q, int max_k, bool causal, float scale) -> Tensor");
  m.def(
      "jagged_attention_forward(Tensor q, Tensor k, Tensor v, Tensor q_offsets, Tensor k_offsets, "
      "int max_q, int max_k, bool causal, float scale) -> (Tensor, Tensor)");
  m.def(
      "jagged_attention_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
      "Tensor q_offsets, Tensor k_offsets, int max_q, int max_k, bool causal, float scale) -> "
      "(Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(tautline, CPU, m) {
  m.impl("jagged_attention_forward", attention_forward);
  m.impl("jagged_attention_backward", attention_backward);
}
TORCH_LIBRARY_IMPL(tautline, CUDA, m) {
  m.impl("jagged_attention_forward", attention_forward);
  m.impl("jagged_attention_backward", attention_backward);
}
TORCH_LIBRARY_IMPL(tautline, Meta, m) {
  m.impl("jagged_attention_forward", forward_meta);
  m.impl("jagged_attention_backward", backward_meta);
}
TORCH_LIBRARY_IMPL(tautline, CompositeExplicitAutograd, m) {
  m.impl("jagged_attention", attention_plain);
}
TORCH_LIBRARY_IMPL(tautline, Autograd, m) { m.impl("jagged_attention", jagged_attention); }

}  // namespace tautline::ops
