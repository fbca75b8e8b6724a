// full_softmax and its sharded parts, with an optional repeat bias (kernels/repeat_bias.h).
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tautline/base/error.h"
#include "tautline/ops/loss_parts.h"
#include "tautline/ops/on_its_device.h"

namespace tautline::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The sum of the rows' parts as [1], or nothing.
Tensor bias_gradient(const SoftmaxResult& r, const Tensor& h) {
  return r.d_bias.defined() ? total(r.d_bias).reshape({1}) : at::empty({0}, float_like(h));
}

/// (loss, d_h, d_items, d_bias); the gradients are empty without `gradient`, and the last one
/// without a bias.
Four full_softmax_forward(const Tensor& h, const Tensor& items, const Tensor& target,
                          double temperature, bool normalize, const OptionalTensor& bias,
                          const OptionalTensor& column, const OptionalTensor& first,
                          const OptionalTensor& last, bool gradient) {
  check_softmax(h, items, target, temperature);
  const Tensor classes = int64_vector(target, h, "target");
  check_targets(classes, 0, items.size(0));
  const Rows query(h, normalize), key(items, normalize);
  SoftmaxProblem problem{query.value, key.value};
  problem.target = classes;
  problem.repeats = checked_repeats(bias, column, first, last, h, items.size(0));
  problem.temperature = temperature;
  problem.gradient = gradient;
  const SoftmaxResult r = softmax_rows(problem);
  const Tensor loss = total(r.max + r.sum.log() - r.target_logit);
  const Tensor d_bias = bias_gradient(r, h);
  if (!gradient)
    return {loss, at::empty({0}, h.options()), at::empty({0}, items.options()), d_bias};
  return {loss, query.back(r.d_h), key.back(r.d_items), d_bias};
}

Tensor bias_meta(const Tensor& h, const OptionalTensor& bias, bool gradient) {
  return at::empty({bias && gradient ? 1 : 0}, float_like(h));
}
Four full_meta(const Tensor& h, const Tensor& items, const Tensor&, double, bool,
               const OptionalTensor& bias, const OptionalTensor&, const OptionalTensor&,
               const OptionalTensor&, bool gradient) {
  return {scalar_meta(h), gradient_meta(h, gradient), gradient_meta(items, gradient),
          bias_meta(h, bias, gradient)};
}
Four call_full(const Tensor& h, const Tensor& items, const Tensor& target, double temperature,
               bool normalize, const OptionalTensor& bias, const OptionalTensor& column,
               const OptionalTensor& first, const OptionalTensor& last, bool gradient) {
  static const auto op =
      find_operator<decltype(full_softmax_forward)>("tautline::full_softmax_forward");
  return op.call(h, items, target, temperature, normalize, bias, column, first, last, gradient);
}
struct FullSoftmax : torch::autograd::Function<FullSoftmax> {
  static Tensor forward(AutogradContext* ctx, const Tensor& h, const Tensor& items,
                        const Tensor& target, double temperature, bool normalize,
                        const OptionalTensor& bias, const OptionalTensor& column,
                        const OptionalTensor& first, const OptionalTensor& last, bool gradient) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto [loss, d_h, d_items, d_bias] =
        call_full(h, items, target, temperature, normalize, bias, column, first, last, gradient);
    ctx->save_for_backward({d_h, d_items, d_bias});
    if (bias) ctx->saved_data["bias"] = bias->sizes().vec();
    return loss;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    variable_list result(10);
    for (int i = 0; i < 2; ++i) result[i] = scaled(saved[i], gradients[0]);
    if (const auto bias = ctx->saved_data.find("bias"); bias != ctx->saved_data.end())
      result[5] = scaled(saved[2], gradients[0]).reshape(bias->second.toIntVector());
    return result;
  }
};

Tensor full_softmax_plain(const Tensor& h, const Tensor& items, const Tensor& target,
                          double temperature, bool normalize, const OptionalTensor& bias,
                          const OptionalTensor& column, const OptionalTensor& first,
                          const OptionalTensor& last) {
  return std::get<0>(
      call_full(h, items, target, temperature, normalize, bias, column, first, last, false));
}
Tensor full_softmax_autograd(const Tensor& h, const Tensor& items, const Tensor& target,
                             double temperature, bool normalize, const OptionalTensor& bias,
                             const OptionalTensor& column, const OptionalTensor& first,
                             const OptionalTensor& last) {
  return FullSoftmax::apply(
      h, items, target, temperature, normalize, bias, column, first, last,
      wanted(bias ? std::vector<Tensor>{h, items, *bias} : std::vector<Tensor>{h, items}));
}
Three statistics_meta(const Tensor& h, const Tensor&, const Tensor&, double, const OptionalTensor&,
                      const OptionalTensor&, const OptionalTensor&, const OptionalTensor&) {
  const auto row = [&] { return at::empty_symint({h.sym_size(0)}, float_like(h)); };
  return {row(), row(), row()};
}
Three gradient_op_meta(const Tensor& h, const Tensor& items, const Tensor&, const Tensor&, double,
                       double, const OptionalTensor& bias, const OptionalTensor&,
                       const OptionalTensor&, const OptionalTensor&) {
  return {gradient_meta(h, true), gradient_meta(items, true), bias_meta(h, bias, true)};
}
Three statistics_op(const Tensor& h, const Tensor& items, const Tensor& target_local,
                    double temperature, const OptionalTensor& bias, const OptionalTensor& column,
                    const OptionalTensor& first, const OptionalTensor& last) {
  check_softmax(h, items, target_local, temperature);
  SoftmaxProblem problem{h, items};
  problem.target = int64_vector(target_local, h, "target_local");
  check_targets(*problem.target, -1, items.size(0));
  problem.repeats = checked_repeats(bias, column, first, last, h, items.size(0));
  problem.temperature = temperature;
  problem.gradient = false;
  const SoftmaxResult r = softmax_rows(problem);
  return {r.max, r.sum, r.target_logit};
}

Three gradient_op(const Tensor& h, const Tensor& items, const Tensor& lse,
                  const Tensor& target_local, double temperature, double scale,
                  const OptionalTensor& bias, const OptionalTensor& column,
                  const OptionalTensor& first, const OptionalTensor& last) {
  check_softmax(h, items, target_local, temperature);
  SoftmaxProblem problem{h, items};
  problem.target = int64_vector(target_local, h, "target_local");
  check_targets(*problem.target, -1, items.size(0));
  problem.repeats = checked_repeats(bias, column, first, last, h, items.size(0));
  problem.lse = float_vector(lse);
  problem.temperature = temperature;
  problem.weight = scale;
  const SoftmaxResult r = softmax_rows(problem);
  return {r.d_h, r.d_items, bias_gradient(r, h)};
}

}  // namespace

Tensor full_softmax(const Tensor& h, const Tensor& items, const Tensor& target, double temperature,
                    bool normalize, const Repeats& r) {
  return full_softmax_autograd(h, items, target, temperature, normalize, if_defined(r.bias),
                               if_defined(r.column), if_defined(r.first), if_defined(r.last));
}
Three softmax_statistics(const Tensor& h, const Tensor& items, const Tensor& target_local,
                         double temperature, const Repeats& r) {
  return statistics_op(h, items, target_local, temperature, if_defined(r.bias),
                       if_defined(r.column), if_defined(r.first), if_defined(r.last));
}

Three softmax_gradient(const Tensor& h, const Tensor& items, const Tensor& lse,
                       const Tensor& target_local, double temperature, double scale,
                       const Repeats& r) {
  return gradient_op(h, items, lse, target_local, temperature, scale, if_defined(r.bias),
                     if_defined(r.column), if_defined(r.first), if_defined(r.last));
}

TORCH_LIBRARY_FRAGMENT(tautline, m) {
  m.def(
      "full_softmax(Tensor h, Tensor items, Tensor target, float temperature, bool normalize, "
      "Tensor? repeat_bias=None, Tensor? repeat_column=None, Tensor? repeat_first=None, Tensor? "
      "repeat_last=None) -> Tensor");
  m.def(
      "full_softmax_forward(Tensor h, Tensor items, Tensor target, float temperature, bool "
      "normalize, Tensor? repeat_bias, Tensor? repeat_column, Tensor? repeat_first, Tensor? "
      "repeat_last, bool gradient) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "softmax_statistics(Tensor h, Tensor items, Tensor target_local, float temperature, Tensor? "
      "repeat_bias=None, Tensor? repeat_column=None, Tensor? repeat_first=None, Tensor? "
      "repeat_last=None) -> (Tensor, Tensor, Tensor)");
  m.def(
      "softmax_gradient(Tensor h, Tensor items, Tensor lse, Tensor target_local, float "
      "temperature, float scale, Tensor? repeat_bias=None, Tensor? repeat_column=None, Tensor? "
      "repeat_first=None, Tensor? repeat_last=None) -> (Tensor, Tensor, Tensor)");
}

namespace {
void implement(torch::Library& m) {
  m.impl("full_softmax_forward", on_its_device<full_softmax_forward>);
  m.impl("softmax_statistics", on_its_device<statistics_op>);
  m.impl("softmax_gradient", on_its_device<gradient_op>);
}
}  // namespace
TORCH_LIBRARY_IMPL(tautline, CPU, m) { implement(m); }
TORCH_LIBRARY_IMPL(tautline, CUDA, m) { implement(m); }
TORCH_LIBRARY_IMPL(tautline, Meta, m) {
  m.impl("full_softmax_forward", full_meta);
  m.impl("softmax_statistics", statistics_meta);
  m.impl("softmax_gradient", gradient_op_meta);
}
TORCH_LIBRARY_IMPL(tautline, CompositeExplicitAutograd, m) {
  m.impl("full_softmax", full_softmax_plain);
}
TORCH_LIBRARY_IMPL(tautline, Autograd, m) { m.impl("full_softmax", full_softmax_autograd); }

}  // namespace tautline::ops
