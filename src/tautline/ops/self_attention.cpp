// self_attention: attention of a packed projection on itself. The kernels read q, k and v where the
// projection's product left them and write their gradients where the next product wants them: between
// the two nothing is copied but q and k, once, as they turn.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tautline/base/error.h"
#include "tautline/ops/attention_compute.h"
#include "tautline/ops/on_its_device.h"
#include "tautline/ops/ops.h"
#include "tautline/ops/rope.h"

namespace tautline::ops {
namespace {

constexpr std::string_view kName = "self_attention";
constexpr std::string_view kSoftmax = "softmax";

/// The operators' arguments beside the tensors that are saved.
struct Call {
  OptionalTensor position;
  double rope_base;
  Tensor offsets;
  int64_t longest;
  std::string kind;
  double scale, beta;
  AttentionOptions options;
};

/// q, k and v of the projection: q and k from where they were turned, if they were.
struct Parts {
  Parts(const Tensor& qkv, const Tensor& turned)
      : q((turned.numel() > 0 ? turned : qkv).select(1, 0)),
        k((turned.numel() > 0 ? turned : qkv).select(1, 1)),
        v(qkv.select(1, 2)) {}
  Tensor q, k, v;
};

AttentionArguments arguments(const Parts& x, const OptionalTensor& offsets, const Call& c) {
  const AttentionOptions& o = c.options;
  return {x.q,       x.k,      x.v,           offsets,        *offsets,        c.longest,
          c.longest, o.causal, o.window_left, o.window_right, o.position_bias, o.time_bias,
          o.q_time,  o.k_time, o.order};
}

using Result = std::tuple<Tensor, Tensor, Tensor>;  // o, lse, turned

Result compute(const Tensor& qkv, const Call& c) {
  if (qkv.dim() != 4 || qkv.size(1) != 3)
    throw user_error(kName, ": qkv ", qkv.sizes(), " is not [T, 3, H, D]");
  Tensor turned = at::empty({0}, qkv.options());
  if (c.position) {
    check_rope(qkv, *c.position, kName);
    const Tensor in = readable(qkv);
    turned = at::empty({qkv.size(0), 2, qkv.size(2), qkv.size(3)}, in.options());
    turn_heads(in, turned, int64_vector(*c.position, qkv, "position"), c.rope_base, false);
    turned = turned.to(qkv.scalar_type());
  }
  const Parts parts(qkv, turned);
  const OptionalTensor offsets = c.offsets;
  const AttentionArguments a = arguments(parts, offsets, c);
  if (c.kind != kSoftmax)
    return {compute_gdpa(a, c.kind, c.scale, c.beta, c.options.fast),
            at::empty({0}, float_like(qkv)), turned};
  const auto [o, lse] = compute_attention(a, c.scale);
  return {o, lse, turned};
}

using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // d_qkv, d_position_bias, d_time_bias

Gradients compute_backward(const Tensor& d_o, const Tensor& o, const Tensor& lse, const Tensor& qkv,
                           const Tensor& turned, const Call& c) {
  const Parts parts(qkv, turned);
  const OptionalTensor offsets = c.offsets;
  const AttentionArguments a = arguments(parts, offsets, c);
  const Tensor d_qkv = at::empty(qkv.sizes(), result_options(qkv));
  const GradientViews into{d_qkv.select(1, 0), d_qkv.select(1, 1), d_qkv.select(1, 2)};
  const auto [d_q, d_k, d_v, d_position, d_time] =
      c.kind == kSoftmax
          ? compute_attention_backward(a, d_o, o, lse, c.scale, into)
          : compute_gdpa_backward(a, d_o, c.kind, c.scale, c.beta, c.options.fast, into);
  if (c.position) {
    const Tensor both = d_qkv.narrow(1, 0, 2);
    turn_heads(both, both, int64_vector(*c.position, qkv, "position"), c.rope_base, true);
  }
  return {d_qkv.to(qkv.scalar_type()), d_position, d_time};
}

#define TAUTLINE_CALL_PARAMETERS                                                                  \
  const OptionalTensor &position, double rope_base, const Tensor &offsets, int64_t longest,       \
      c10::string_view kind, double scale, double beta, bool causal, int64_t window_left,         \
      int64_t window_right, const OptionalTensor &position_bias, const OptionalTensor &time_bias, \
      const OptionalTensor &time, const OptionalTensor &order, bool fast
#define TAUTLINE_CALL                                                                      \
  Call {                                                                                   \
    position, rope_base, offsets, longest, std::string(kind), scale, beta, {               \
      causal, window_left, window_right, position_bias, time_bias, time, time, order, fast \
    }                                                                                      \
  }

Result forward(const Tensor& qkv, TAUTLINE_CALL_PARAMETERS) { return compute(qkv, TAUTLINE_CALL); }
Gradients backward(const Tensor& d_o, const Tensor& o, const Tensor& lse, const Tensor& qkv,
                   const Tensor& turned, TAUTLINE_CALL_PARAMETERS) {
  return compute_backward(d_o, o, lse, qkv, turned, TAUTLINE_CALL);
}

Result forward_meta(const Tensor& qkv, TAUTLINE_CALL_PARAMETERS) {
  const auto tokens = qkv.sym_size(0), heads = qkv.sym_size(2), dim = qkv.sym_size(3);
  const auto none = [&](const at::TensorOptions& options) { return at::empty({0}, options); };
  return {
      at::empty_symint({tokens, heads, dim}, qkv.options()),
      kind == kSoftmax ? at::empty_symint({heads, tokens}, float_like(qkv)) : none(float_like(qkv)),
      position ? at::empty_symint({tokens, 2, heads, dim}, qkv.options()) : none(qkv.options())};
}
Gradients backward_meta(const Tensor&, const Tensor&, const Tensor&, const Tensor& qkv,
                        const Tensor&, TAUTLINE_CALL_PARAMETERS) {
  const auto like = [&](const OptionalTensor& x) {
    return x ? at::empty_symint(x->sym_sizes(), x->options()) : at::empty({0}, float_like(qkv));
  };
  return {at::empty_symint(qkv.sym_sizes(), qkv.options()), like(position_bias), like(time_bias)};
}

Result call_forward(const Tensor& qkv, const Call& c) {
  static const auto op = find_operator<decltype(forward)>("tautline::self_attention_forward");
  const AttentionOptions& o = c.options;
  return op.call(qkv, c.position, c.rope_base, c.offsets, c.longest, c.kind, c.scale, c.beta,
                 o.causal, o.window_left, o.window_right, o.position_bias, o.time_bias, o.q_time,
                 o.order, o.fast);
}

struct SelfAttentionFunction : torch::autograd::Function<SelfAttentionFunction> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& qkv,
                        const OptionalTensor& position_bias, const OptionalTensor& time_bias,
                        const Call& c) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto [o, lse, turned] = call_forward(qkv, c);
    const auto or_none = [](const OptionalTensor& x) { return x.value_or(Tensor()); };
    // gdpa's backward has no use for o.
    ctx->save_for_backward({c.kind == kSoftmax ? o : lse, lse, qkv, turned, or_none(c.position),
                            c.offsets, or_none(position_bias), or_none(time_bias),
                            or_none(c.options.q_time), or_none(c.options.order)});
    ctx->saved_data["sizes"] = std::vector<int64_t>{
        c.longest, c.options.causal, c.options.window_left, c.options.window_right, c.options.fast};
    ctx->saved_data["numbers"] = std::vector<double>{c.rope_base, c.scale, c.beta};
    ctx->saved_data["kind"] = c.kind;
    return o;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    static const auto op =
        find_operator<decltype(ops::backward)>("tautline::self_attention_backward");
    const auto s = ctx->get_saved_variables();
    const auto n = ctx->saved_data["sizes"].toIntVector();
    const auto x = ctx->saved_data["numbers"].toDoubleVector();
    const auto [d_qkv, d_position, d_time] =
        op.call(gradients[0], s[0], s[1], s[2], s[3], if_defined(s[4]), x[0], s[5], n[0],
                ctx->saved_data["kind"].toStringRef(), x[1], x[2], n[1] != 0, n[2], n[3],
                if_defined(s[6]), if_defined(s[7]), if_defined(s[8]), if_defined(s[9]), n[4] != 0);
    return {d_qkv, s[6].defined() ? d_position : Tensor(), s[7].defined() ? d_time : Tensor(),
            Tensor()};
  }
};

Tensor plain(const Tensor& qkv, TAUTLINE_CALL_PARAMETERS) {
  return std::get<0>(call_forward(qkv, TAUTLINE_CALL));
}
Tensor with_autograd(const Tensor& qkv, TAUTLINE_CALL_PARAMETERS) {
  return SelfAttentionFunction::apply(qkv, position_bias, time_bias, TAUTLINE_CALL);
}

#undef TAUTLINE_CALL
#undef TAUTLINE_CALL_PARAMETERS

}  // namespace

Tensor self_attention(const Tensor& qkv, const OptionalTensor& position, double rope_base,
                      const Tensor& offsets, int64_t longest, std::string_view kind, double scale,
                      double beta, const AttentionOptions& options) {
  return SelfAttentionFunction::apply(
      qkv, options.position_bias, options.time_bias,
      Call{position, rope_base, offsets, longest, std::string(kind), scale, beta, options});
}

TORCH_LIBRARY_FRAGMENT(tautline, m) {
  const std::string call =
      "Tensor? position, float rope_base, Tensor offsets, int longest, str kind, float scale, "
      "float beta, bool causal, int window_left, int window_right, Tensor? position_bias, "
      "Tensor? time_bias, Tensor? time, Tensor? order, bool fast";
  m.def(
      "self_attention(Tensor qkv, Tensor? position, float rope_base, Tensor offsets, int longest, "
      "str kind, float scale, float beta=1.0, bool causal=False, int window_left=-1, "
      "int window_right=-1, Tensor? position_bias=None, Tensor? time_bias=None, "
      "Tensor? time=None, Tensor? order=None, bool fast=False) -> Tensor");
  m.def(("self_attention_forward(Tensor qkv, " + call + ") -> (Tensor, Tensor, Tensor)").c_str());
  m.def(("self_attention_backward(Tensor d_o, Tensor o, Tensor lse, Tensor qkv, Tensor turned, " +
         call + ") -> (Tensor, Tensor, Tensor)")
            .c_str());
}
TORCH_LIBRARY_IMPL(tautline, CPU, m) {
  m.impl("self_attention_forward", forward);
  m.impl("self_attention_backward", backward);
}
TORCH_LIBRARY_IMPL(tautline, CUDA, m) {
  m.impl("self_attention_forward", on_its_device<forward>);
  m.impl("self_attention_backward", on_its_device<backward>);
}
TORCH_LIBRARY_IMPL(tautline, Meta, m) {
  m.impl("self_attention_forward", forward_meta);
  m.impl("self_attention_backward", backward_meta);
}
TORCH_LIBRARY_IMPL(tautline, CompositeExplicitAutograd, m) { m.impl("self_attention", plain); }
TORCH_LIBRARY_IMPL(tautline, Autograd, m) { m.impl("self_attention", with_autograd); }

}  // namespace tautline::ops
