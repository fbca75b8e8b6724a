// block_attention: softmax inside blocks of 64 tokens (kernels/block_attention.h).
#include "tautline/kernels/block_attention.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tautline/base/error.h"
#include "tautline/ops/attention_arguments.h"
#include "tautline/ops/on_its_device.h"

namespace tautline::ops {
namespace {

using Three = std::tuple<Tensor, Tensor, Tensor>;

kernels::RopeLayout layout_of(std::string_view name) {
  if (name == "none") return kernels::RopeLayout::kNone;
  if (name == "half_split") return kernels::RopeLayout::kHalfSplit;
  if (name == "interleaved") return kernels::RopeLayout::kInterleaved;
  throw user_error("block_attention: rope '", std::string(name),
                   "' is none of none, half_split, interleaved");
}

void check(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& offsets, double scale,
           std::string_view rope) {
  if (q.dim() != 3 || k.dim() != 3 || k.sizes() != v.sizes() || q.size(0) != k.size(0) ||
      q.size(2) != k.size(2) || k.size(1) == 0 || q.size(1) % k.size(1) != 0)
    throw user_error("block_attention: q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes(),
                     " are not [T, H, D], [T, G, D], [T, G, D] with H a multiple of G");
  if (layout_of(rope) != kernels::RopeLayout::kNone && q.size(2) % 2 != 0)
    throw user_error("block_attention: rotary positions need an even head dimension, not ",
                     q.size(2));
  if (!(scale >= 0 && scale < INFINITY))
    throw user_error("block_attention: scale ", scale, " is not a number from 0");
  if (offsets.dim() != 1 || offsets.scalar_type() != at::kLong)
    throw user_error("block_attention: offsets ", offsets.sizes(), " are not [B + 1] of int64");
  for (const Tensor* x : {&k, &v, &offsets})
    if (x->device() != q.device())
      throw user_error("block_attention: a tensor is on ", x->device().str(), ", q on ",
                       q.device().str());
  if (!q.is_cpu()) check_cuda(q, k, v, "block_attention");
  check_offsets(offsets, q.size(0));
}

/// [B + 1]: blocks of the sequences before. Undefined for CUDA, whose kernel counts them itself.
Tensor block_offsets_of(const Tensor& offsets) {
  if (!offsets.is_cpu()) return {};
  const Tensor blocks = at::empty(offsets.sizes(), offsets.options());
  const auto* from = offsets.const_data_ptr<int64_t>();
  auto* to = blocks.mutable_data_ptr<int64_t>();
  to[0] = 0;
  for (int64_t b = 0; b + 1 < offsets.numel(); ++b)
    to[b + 1] =
        to[b] + (from[b + 1] - from[b] + kernels::kAttentionBlock - 1) / kernels::kAttentionBlock;
  return blocks;
}

/// The params and the tensors that they point into.
struct Problem {
  Problem(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const Tensor& offsets_in,
          bool causal, double scale, std::string_view rope, double rope_base, bool rotate_values)
      : q(heads_readable(q_in)),
        k(heads_readable(k_in)),
        v(heads_readable(v_in)),
        offsets(offsets_in.contiguous()),
        block_offsets(block_offsets_of(offsets)) {
    p.q = heads_view(q);
    p.k = heads_view(k);
    p.v = heads_view(v);
    p.offsets = offsets.const_data_ptr<int64_t>();
    p.sequences = offsets.numel() - 1;
    p.heads = q.size(1);
    p.kv_heads = k.size(1);
    p.head_dim = q.size(2);
    p.tokens = q.size(0);
    if (block_offsets.defined()) {
      p.block_offsets = block_offsets.const_data_ptr<int64_t>();
      p.blocks = p.block_offsets[p.sequences];
    } else {
      p.blocks = p.tokens / kernels::kAttentionBlock + p.sequences;  // at most
    }
    p.element = element_of(q);
    p.stream = stream_of(q);
    p.causal = causal;
    p.scale = scale;
    p.rope = layout_of(rope);
    p.rope_base = rope_base;
    p.rotate_values = rotate_values;
  }
  Problem(const Problem&) = delete;
  /// Elements of one task; where there are angles a range keeps a table of them, so it is long.
  int64_t cost() const {
    const int64_t scores = kernels::kAttentionBlock * kernels::kAttentionBlock * 8;
    return p.rope == kernels::RopeLayout::kNone ? scores : scores / 8;
  }
  /// Bytes of work memory for the CUDA kernels.
  Tensor workspace(bool backward) const {
    int64_t bytes = 0;
    if constexpr (kCudaBuild) bytes = kernels::block_attention_workspace_cuda(p, backward);
    return at::empty({bytes}, q.options().dtype(at::kByte));
  }
  Tensor q, k, v, offsets, block_offsets;
  kernels::BlockAttention p;
};

Tensor block_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& offsets,
                     bool causal, double scale, c10::string_view rope, double rope_base,
                     bool rotate_values) {
  check(q, k, v, offsets, scale, rope);
  Problem problem(q, k, v, offsets, causal, scale, rope, rope_base, rotate_values);
  kernels::BlockAttention& p = problem.p;
  Tensor o = at::empty(q.sizes(), result_options(q));
  p.o = heads_view(o);
  if (q.is_cpu()) {
    parallel(p.blocks * p.kv_heads, problem.cost(),
             [&](int64_t i, int64_t j) { kernels::block_attention_forward_cpu(p, i, j); });
  } else {
    const Tensor workspace = problem.workspace(/*backward=*/false);
    if constexpr (kCudaBuild)
      kernels::block_attention_forward_cuda(p, workspace.mutable_data_ptr());
  }
  return o.to(q.scalar_type());
}

Three block_backward(const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v,
                     const Tensor& offsets, bool causal, double scale, c10::string_view rope,
                     double rope_base, bool rotate_values) {
  Problem problem(q, k, v, offsets, causal, scale, rope, rope_base, rotate_values);
  kernels::BlockAttention& p = problem.p;
  const Tensor fd = heads_readable(d_o);
  const auto options = result_options(q);
  Tensor d_q = at::empty(q.sizes(), options), d_k = at::empty(k.sizes(), options);
  Tensor d_v = at::empty(v.sizes(), options);
  p.d_o = heads_view(fd);
  p.d_q = heads_view(d_q);
  p.d_k = heads_view(d_k);
  p.d_v = heads_view(d_v);
  if (q.is_cpu()) {
    parallel(p.blocks * p.kv_heads, 2 * problem.cost(),
             [&](int64_t i, int64_t j) { kernels::block_attention_backward_cpu(p, i, j); });
  } else {
    const Tensor workspace = problem.workspace(/*backward=*/true);
    if constexpr (kCudaBuild)
      kernels::block_attention_backward_cuda(p, workspace.mutable_data_ptr());
  }
  return {d_q.to(q.scalar_type()), d_k.to(k.scalar_type()), d_v.to(v.scalar_type())};
}

Tensor like(const Tensor& x) { return at::empty_symint(x.sym_sizes(), x.options()); }
Tensor forward_meta(const Tensor& q, const Tensor&, const Tensor&, const Tensor&, bool, double,
                    c10::string_view, double, bool) {
  return like(q);
}
Three backward_meta(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&,
                    bool, double, c10::string_view, double, bool) {
  return {like(q), like(k), like(v)};
}

Tensor call_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& offsets,
                    bool causal, double scale, std::string_view rope, double rope_base,
                    bool rotate_values) {
  static const auto op =
      find_operator<decltype(block_forward)>("tautline::block_attention_forward");
  return op.call(q, k, v, offsets, causal, scale, rope, rope_base, rotate_values);
}

struct BlockFunction : torch::autograd::Function<BlockFunction> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& q, const Tensor& k,
                        const Tensor& v, const Tensor& offsets, bool causal, double scale,
                        std::string_view rope, double rope_base, bool rotate_values) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({q, k, v, offsets});
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["rope"] = std::string(rope);
    ctx->saved_data["rope_base"] = rope_base;
    ctx->saved_data["rotate_values"] = rotate_values;
    return call_forward(q, k, v, offsets, causal, scale, rope, rope_base, rotate_values);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    static const auto op =
        find_operator<decltype(block_backward)>("tautline::block_attention_backward");
    const auto s = ctx->get_saved_variables();
    const std::string rope = ctx->saved_data["rope"].toStringRef();
    const auto [d_q, d_k, d_v] =
        op.call(gradients[0], s[0], s[1], s[2], s[3], ctx->saved_data["causal"].toBool(),
                ctx->saved_data["scale"].toDouble(), rope, ctx->saved_data["rope_base"].toDouble(),
                ctx->saved_data["rotate_values"].toBool());
    torch::autograd::variable_list result(9);
    result[0] = d_q;
    result[1] = d_k;
    result[2] = d_v;
    return result;
  }
};

Tensor block_autograd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& offsets,
                      bool causal, double scale, c10::string_view rope, double rope_base,
                      bool rotate_values) {
  return block_attention(q, k, v, offsets, causal, scale, rope, rope_base, rotate_values);
}
Tensor block_plain(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& offsets,
                   bool causal, double scale, c10::string_view rope, double rope_base,
                   bool rotate_values) {
  return call_forward(q, k, v, offsets, causal, scale, rope, rope_base, rotate_values);
}

}  // namespace

Tensor block_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& offsets,
                       bool causal, double scale, std::string_view rope, double rope_base,
                       bool rotate_values) {
  return BlockFunction::apply(q, k, v, offsets, causal, scale, rope, rope_base, rotate_values);
}

TORCH_LIBRARY_FRAGMENT(tautline, m) {
  m.def(
      "block_attention(Tensor q, Tensor k, Tensor v, Tensor offsets, bool causal, float scale, "
      "str rope='none', float rope_base=10000.0, bool rotate_values=False) -> Tensor");
  m.def(
      "block_attention_forward(Tensor q, Tensor k, Tensor v, Tensor offsets, bool causal, "
      "float scale, str rope, float rope_base, bool rotate_values) -> Tensor");
  m.def(
      "block_attention_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor offsets, "
      "bool causal, float scale, str rope, float rope_base, bool rotate_values) -> "
      "(Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(tautline, CPU, m) {
  m.impl("block_attention_forward", block_forward);
  m.impl("block_attention_backward", block_backward);
}
TORCH_LIBRARY_IMPL(tautline, CUDA, m) {
  m.impl("block_attention_forward", on_its_device<block_forward>);
  m.impl("block_attention_backward", on_its_device<block_backward>);
}
TORCH_LIBRARY_IMPL(tautline, Meta, m) {
  m.impl("block_attention_forward", forward_meta);
  m.impl("block_attention_backward", backward_meta);
}
TORCH_LIBRARY_IMPL(tautline, CompositeExplicitAutograd, m) {
  m.impl("block_attention", block_plain);
}
TORCH_LIBRARY_IMPL(tautline, Autograd, m) { m.impl("block_attention", block_autograd); }

}  // namespace tautline::ops
