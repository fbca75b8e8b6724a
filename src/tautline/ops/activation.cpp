// swiglu and gelu, with an optional bias.
#include "tautline/kernels/activation.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tautline/base/error.h"
#include "tautline/ops/on_its_device.h"
#include "tautline/ops/ops.h"
#include "tautline/ops/support.h"

namespace tautline::ops {
namespace {

using kernels::ActivationKind;
using Pair = std::tuple<Tensor, Tensor>;

kernels::Activation make_params(const Tensor& x, const OptionalTensor& bias, bool gated) {
  if (x.dim() != 2 || (gated && x.size(1) % 2 != 0))
    throw user_error("activation: x ", x.sizes(), gated ? " is not [T, 2F]" : " is not [T, F]");
  if (bias && (bias->dim() != 1 || bias->size(0) != x.size(1)))
    throw user_error("activation: bias ", bias->sizes(), " does not fit x ", x.sizes());
  kernels::Activation p;
  p.kind = gated ? ActivationKind::kSwiglu : ActivationKind::kGelu;
  p.rows = x.size(0);
  p.width = gated ? x.size(1) / 2 : x.size(1);
  p.x = x.const_data_ptr();
  p.bias = float_data(bias);
  p.element = element_of(x);
  p.stream = stream_of(x);
  return p;
}

OptionalTensor float_bias(const OptionalTensor& bias) {
  return bias ? OptionalTensor(float_vector(*bias)) : std::nullopt;
}

Tensor activation_forward(const Tensor& x, const OptionalTensor& bias, bool gated) {
  const Tensor in = readable(x);
  const OptionalTensor b = float_bias(bias);
  kernels::Activation p = make_params(in, b, gated);
  Tensor out = at::empty({p.rows, p.width}, in.options());
  p.out = out.mutable_data_ptr();
  if (x.numel() == 0) return out.to(x.scalar_type());
  if (x.is_cpu()) {
    parallel(p.rows, 4 * p.width,
             [&](int64_t i, int64_t j) { kernels::activation_forward_cpu(p, i, j); });
  } else {
    if constexpr (kCudaBuild) kernels::activation_forward_cuda(p);
  }
  return out.to(x.scalar_type());
}

int64_t partials(const Tensor& x) {
  if constexpr (kCudaBuild) {
    if (x.is_cuda()) return kernels::activation_partials_cuda(x.size(0), x.size(1));
  }
  return (x.size(0) + kernels::kActivationBlockRows - 1) / kernels::kActivationBlockRows;
}

/// (d_x, d_bias); d_bias is empty without a bias.
Pair activation_backward(const Tensor& d_out, const Tensor& x, const OptionalTensor& bias,
                         bool gated) {
  const Tensor in = readable(x), dy = readable(d_out);
  const OptionalTensor b = float_bias(bias);
  kernels::Activation p = make_params(in, b, gated);
  Tensor d_x = at::empty(in.sizes(), in.options());
  Tensor d_bias = at::empty({b ? x.size(1) : 0}, float_like(x));
  p.partials = partials(x);
  Tensor workspace = at::empty({b ? p.partials : 0, x.size(1)}, float_like(x));
  p.d_out = dy.const_data_ptr();
  p.d_x = d_x.mutable_data_ptr();
  if (b) {
    p.d_bias = d_bias.mutable_data_ptr<float>();
    p.workspace = workspace.mutable_data_ptr<float>();
  }
  if (x.is_cpu()) {
    parallel(p.partials, 4 * p.width * kernels::kActivationBlockRows,
             [&](int64_t i, int64_t j) { kernels::activation_backward_cpu(p, i, j); });
    if (b) kernels::activation_backward_finish_cpu(p);
  } else if (x.numel() == 0) {
    d_bias.zero_();
  } else {
    if constexpr (kCudaBuild) kernels::activation_backward_cuda(p);
  }
  return {d_x.to(x.scalar_type()), b ? d_bias.to(bias->scalar_type()) : d_bias};
}

Tensor forward_meta(const Tensor& x, const OptionalTensor&, bool gated) {
  return at::empty_symint({x.sym_size(0), gated ? x.sym_size(1) / 2 : x.sym_size(1)}, x.options());
}
Pair backward_meta(const Tensor&, const Tensor& x, const OptionalTensor& bias, bool) {
  return {
      at::empty_symint(x.sym_sizes(), x.options()),
      bias ? at::empty_symint(bias->sym_sizes(), bias->options()) : at::empty({0}, float_like(x))};
}

Tensor call_forward(const Tensor& x, const OptionalTensor& bias, bool gated) {
  static const auto op =
      find_operator<decltype(activation_forward)>("tautline::activation_forward");
  return op.call(x, bias, gated);
}
Pair call_backward(const Tensor& d_out, const Tensor& x, const OptionalTensor& bias, bool gated) {
  static const auto op =
      find_operator<decltype(activation_backward)>("tautline::activation_backward");
  return op.call(d_out, x, bias, gated);
}

struct ActivationFunction : torch::autograd::Function<ActivationFunction> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x,
                        const OptionalTensor& bias, bool gated) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({x, bias.value_or(Tensor())});
    ctx->saved_data["gated"] = gated;
    return call_forward(x, bias, gated);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto [d_x, d_bias] = call_backward(gradients[0], saved[0], if_defined(saved[1]),
                                             ctx->saved_data["gated"].toBool());
    return {d_x, saved[1].defined() ? d_bias : Tensor(), Tensor()};
  }
};

Tensor swiglu_plain(const Tensor& x, const OptionalTensor& bias) {
  return call_forward(x, bias, true);
}
Tensor gelu_plain(const Tensor& x, const OptionalTensor& bias) {
  return call_forward(x, bias, false);
}

}  // namespace

Tensor swiglu(const Tensor& x, const OptionalTensor& bias) {
  return ActivationFunction::apply(x, bias, true);
}
Tensor gelu(const Tensor& x, const OptionalTensor& bias) {
  return ActivationFunction::apply(x, bias, false);
}

TORCH_LIBRARY_FRAGMENT(tautline, m) {
  m.def("swiglu(Tensor x, Tensor? bias=None) -> Tensor");
  m.def("gelu(Tensor x, Tensor? bias=None) -> Tensor");
  m.def("activation_forward(Tensor x, Tensor? bias, bool gated) -> Tensor");
  m.def(
      "activation_backward(Tensor d_out, Tensor x, Tensor? bias, bool gated) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(tautline, CPU, m) {
  m.impl("activation_forward", activation_forward);
  m.impl("activation_backward", activation_backward);
}
TORCH_LIBRARY_IMPL(tautline, CUDA, m) {
  m.impl("activation_forward", on_its_device<activation_forward>);
  m.impl("activation_backward", on_its_device<activation_backward>);
}
TORCH_LIBRARY_IMPL(tautline, Meta, m) {
  m.impl("activation_forward", forward_meta);
  m.impl("activation_backward", backward_meta);
}
TORCH_LIBRARY_IMPL(tautline, CompositeExplicitAutograd, m) {
  m.impl("swiglu", swiglu_plain);
  m.impl("gelu", gelu_plain);
}
TORCH_LIBRARY_IMPL(tautline, Autograd, m) {
  m.impl("swiglu", swiglu);
  m.impl("gelu", gelu);
}

}  // namespace tautline::ops
