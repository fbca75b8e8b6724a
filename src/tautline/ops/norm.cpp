// rms_norm, layer_norm and their forms fused with the residual addition.
#include "tautline/kernels/norm.h"

#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tautline/base/error.h"
#include "tautline/ops/on_its_device.h"
#include "tautline/ops/ops.h"
#include "tautline/ops/support.h"

namespace tautline::ops {
namespace {

using kernels::NormKind;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

void check(const Tensor& x, const OptionalTensor& residual, const Tensor& weight,
           const OptionalTensor& bias) {
  if (x.dim() != 2 || weight.dim() != 1 || weight.size(0) != x.size(1))
    throw user_error("norm: x ", x.sizes(), " and weight ", weight.sizes(),
                     " are not [T, C] and [C]");
  if (residual && (residual->sizes() != x.sizes() || residual->scalar_type() != x.scalar_type()))
    throw user_error("norm: residual ", residual->sizes(), " is not like x ", x.sizes());
  if (bias && bias->sizes() != weight.sizes())
    throw user_error("norm: bias ", bias->sizes(), " is not like weight ", weight.sizes());
}

/// (sum, out, mean, rstd); sum is empty without a residual, mean is empty without a bias (RMS).
Four norm_forward(const Tensor& x, const OptionalTensor& residual, const Tensor& weight,
                  const OptionalTensor& bias, double eps) {
  check(x, residual, weight, bias);
  const Tensor in = readable(x), w = float_vector(weight);
  const OptionalTensor b = bias ? OptionalTensor(float_vector(*bias)) : std::nullopt;
  const OptionalTensor r = residual ? OptionalTensor(readable(*residual)) : std::nullopt;
  Tensor out = at::empty(in.sizes(), in.options());
  Tensor sum = at::empty(r ? in.sizes() : at::IntArrayRef({0}), in.options());
  Tensor mean = at::empty({b ? x.size(0) : 0}, float_like(x));
  Tensor rstd = at::empty({x.size(0)}, float_like(x));
  kernels::NormForward p;
  p.x = in.const_data_ptr();
  p.weight = w.const_data_ptr<float>();
  p.bias = float_data(b);
  p.out = out.mutable_data_ptr();
  p.rstd = rstd.mutable_data_ptr<float>();
  if (r) {
    p.residual = r->const_data_ptr();
    p.sum = sum.mutable_data_ptr();
  }
  if (b) p.mean = mean.mutable_data_ptr<float>();
  p.rows = x.size(0);
  p.width = x.size(1);
  p.eps = eps;
  p.kind = b ? NormKind::kLayer : NormKind::kRms;
  p.element = element_of(in);
  p.stream = stream_of(x);
  if (p.rows == 0 || p.width == 0) return {sum, out, mean, rstd};
  if (x.is_cpu()) {
    parallel(p.rows, p.width, [&](int64_t i, int64_t j) { kernels::norm_forward_cpu(p, i, j); });
  } else {
    if constexpr (kCudaBuild) kernels::norm_forward_cuda(p);
  }
  return {sum.to(x.scalar_type()), out.to(x.scalar_type()), mean, rstd};
}

int64_t partials(const Tensor& s) {
  if constexpr (kCudaBuild) {
    if (s.is_cuda()) return kernels::norm_partials_cuda(s.size(0), s.size(1));
  }
  return (s.size(0) + kernels::kNormBlockRows - 1) / kernels::kNormBlockRows;
}

/// (d_x, d_weight, d_bias); d_bias is empty for the RMS norm.
Three norm_backward(const Tensor& d_out, const OptionalTensor& d_sum, const Tensor& s,
                    const Tensor& weight, const Tensor& mean, const Tensor& rstd, bool layer) {
  const Tensor dy = readable(d_out), in = readable(s), w = float_vector(weight);
  const OptionalTensor ds = d_sum ? OptionalTensor(readable(*d_sum)) : std::nullopt;
  Tensor d_x = at::empty(in.sizes(), in.options());
  Tensor d_weight = at::empty(w.sizes(), w.options());
  Tensor d_bias = at::empty({layer ? w.size(0) : 0}, w.options());
  kernels::NormBackward p;
  p.partials = partials(s);
  Tensor workspace = at::empty({p.partials, 2, s.size(1)}, w.options());
  p.d_out = dy.const_data_ptr();
  p.d_sum = ds ? ds->const_data_ptr() : nullptr;
  p.s = in.const_data_ptr();
  p.weight = w.const_data_ptr<float>();
  p.mean = layer ? mean.const_data_ptr<float>() : nullptr;
  p.rstd = rstd.const_data_ptr<float>();
  p.d_x = d_x.mutable_data_ptr();
  p.d_weight = d_weight.mutable_data_ptr<float>();
  p.d_bias = layer ? d_bias.mutable_data_ptr<float>() : nullptr;
  p.workspace = workspace.mutable_data_ptr<float>();
  p.rows = s.size(0);
  p.width = s.size(1);
  p.kind = layer ? NormKind::kLayer : NormKind::kRms;
  p.element = element_of(in);
  p.stream = stream_of(s);
  if (s.is_cpu()) {
    parallel(p.partials, p.width * kernels::kNormBlockRows,
             [&](int64_t i, int64_t j) { kernels::norm_backward_cpu(p, i, j); });
    kernels::norm_backward_finish_cpu(p);
  } else if (s.numel() == 0) {
    d_weight.zero_();
    d_bias.zero_();
  } else {
    if constexpr (kCudaBuild) kernels::norm_backward_cuda(p);
  }
  return {d_x.to(s.scalar_type()), d_weight.to(weight.scalar_type()),
          d_bias.to(weight.scalar_type())};
}

Four forward_meta(const Tensor& x, const OptionalTensor& residual, const Tensor& weight,
                  const OptionalTensor& bias, double) {
  const auto rows = x.sym_size(0);
  const Tensor out = at::empty_symint(x.sym_sizes(), x.options());
  return {residual ? at::empty_symint(x.sym_sizes(), x.options()) : at::empty({0}, x.options()),
          out, bias ? at::empty_symint({rows}, float_like(x)) : at::empty({0}, float_like(x)),
          at::empty_symint({rows}, float_like(x))};
}

Three backward_meta(const Tensor& d_out, const OptionalTensor&, const Tensor& s,
                    const Tensor& weight, const Tensor&, const Tensor&, bool layer) {
  const Tensor d_weight = at::empty_symint(weight.sym_sizes(), weight.options());
  return {at::empty_symint(s.sym_sizes(), s.options()), d_weight,
          layer ? at::empty_symint(weight.sym_sizes(), weight.options())
                : at::empty({0}, weight.options())};
}

Four call_forward(const Tensor& x, const OptionalTensor& residual, const Tensor& weight,
                  const OptionalTensor& bias, double eps) {
  static const auto op = find_operator<decltype(norm_forward)>("tautline::norm_forward");
  return op.call(x, residual, weight, bias, eps);
}
Three call_backward(const Tensor& d_out, const OptionalTensor& d_sum, const Tensor& s,
                    const Tensor& weight, const Tensor& mean, const Tensor& rstd, bool layer) {
  static const auto op = find_operator<decltype(norm_backward)>("tautline::norm_backward");
  return op.call(d_out, d_sum, s, weight, mean, rstd, layer);
}

/// Returns {sum, out} with a residual, {out} without.
struct Norm : torch::autograd::Function<Norm> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x,
                               const OptionalTensor& residual, const Tensor& weight,
                               const OptionalTensor& bias, double eps) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [sum, out, mean, rstd] = call_forward(x, residual, weight, bias, eps);
    ctx->saved_data["layer"] = bias.has_value();
    ctx->saved_data["residual"] = residual.has_value();
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({residual ? sum : x, weight, mean, rstd});
    if (residual) return {sum, out};
    return {out};
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const bool layer = ctx->saved_data["layer"].toBool();
    const bool fused = ctx->saved_data["residual"].toBool();
    Tensor d_out = gradients.back(), d_sum = fused ? gradients.front() : Tensor();
    if (!d_out.defined()) d_out = at::zeros_like(saved[0]);
    const auto [d_x, d_weight, d_bias] =
        call_backward(d_out, if_defined(d_sum), saved[0], saved[1], saved[2], saved[3], layer);
    return {d_x, fused ? d_x : Tensor(), d_weight, layer ? d_bias : Tensor(), Tensor()};
  }
};

// The public operators where autograd is not wanted.
Tensor rms_norm_plain(const Tensor& x, const Tensor& weight, double eps) {
  return std::get<1>(call_forward(x, std::nullopt, weight, std::nullopt, eps));
}
Tensor layer_norm_plain(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return std::get<1>(call_forward(x, std::nullopt, weight, bias, eps));
}
std::tuple<Tensor, Tensor> add_rms_norm_plain(const Tensor& x, const Tensor& residual,
                                              const Tensor& weight, double eps) {
  auto [sum, out, mean, rstd] = call_forward(x, residual, weight, std::nullopt, eps);
  return {sum, out};
}
std::tuple<Tensor, Tensor> add_layer_norm_plain(const Tensor& x, const Tensor& residual,
                                                const Tensor& weight, const Tensor& bias,
                                                double eps) {
  auto [sum, out, mean, rstd] = call_forward(x, residual, weight, bias, eps);
  return {sum, out};
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return Norm::apply(x, OptionalTensor(), weight, OptionalTensor(), eps)[0];
}
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return Norm::apply(x, OptionalTensor(), weight, OptionalTensor(bias), eps)[0];
}
std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual,
                                        const Tensor& weight, double eps) {
  const auto out = Norm::apply(x, OptionalTensor(residual), weight, OptionalTensor(), eps);
  return {out[0], out[1]};
}
std::tuple<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& residual,
                                          const Tensor& weight, const Tensor& bias, double eps) {
  const auto out = Norm::apply(x, OptionalTensor(residual), weight, OptionalTensor(bias), eps);
  return {out[0], out[1]};
}

TORCH_LIBRARY_FRAGMENT(tautline, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("layer_norm(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor");
  m.def("add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)");
  m.def(
      "add_layer_norm(Tensor x, Tensor residual, Tensor weight, Tensor bias, float eps) -> "
      "(Tensor, Tensor)");
  m.def(
      "norm_forward(Tensor x, Tensor? residual, Tensor weight, Tensor? bias, float eps) -> "
      "(Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "norm_backward(Tensor d_out, Tensor? d_sum, Tensor s, Tensor weight, Tensor mean, "
      "Tensor rstd, bool layer) -> (Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(tautline, CPU, m) {
  m.impl("norm_forward", norm_forward);
  m.impl("norm_backward", norm_backward);
}
TORCH_LIBRARY_IMPL(tautline, CUDA, m) {
  m.impl("norm_forward", on_its_device<norm_forward>);
  m.impl("norm_backward", on_its_device<norm_backward>);
}
TORCH_LIBRARY_IMPL(tautline, Meta, m) {
  m.impl("norm_forward", forward_meta);
  m.impl("norm_backward", backward_meta);
}
TORCH_LIBRARY_IMPL(tautline, CompositeExplicitAutograd, m) {
  m.impl("rms_norm", rms_norm_plain);
  m.impl("layer_norm", layer_norm_plain);
  m.impl("add_rms_norm", add_rms_norm_plain);
  m.impl("add_layer_norm", add_layer_norm_plain);
}
TORCH_LIBRARY_IMPL(tautline, Autograd, m) {
  m.impl("rms_norm", rms_norm);
  m.impl("layer_norm", layer_norm);
  m.impl("add_rms_norm", add_rms_norm);
  m.impl("add_layer_norm", add_layer_norm);
}

}  // namespace tautline::ops
