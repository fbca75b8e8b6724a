// sampled_softmax: the positive of each row against negatives that all rows share.
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tautline/base/error.h"
#include "tautline/ops/loss_parts.h"

namespace tautline::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

OptionalTensor floats(const OptionalTensor& x) {
  return x ? OptionalTensor(float_vector(*x)) : std::nullopt;
}

/// (loss, d_h, d_positive, d_negative)
Four sampled_softmax_forward(const Tensor& h, const Tensor& positive, const Tensor& negative,
                             const Tensor& target_id, const Tensor& negative_id,
                             const OptionalTensor& log_q_positive,
                             const OptionalTensor& log_q_negative, double temperature,
                             bool normalize, bool remove_hits, bool gradient) {
  check_softmax(h, negative, target_id, temperature);
  if (positive.sizes() != h.sizes())
    throw user_error("sampled_softmax: positive ", positive.sizes(), " is not like h ", h.sizes());
  if (negative_id.numel() != negative.size(0))
    throw user_error("sampled_softmax: ", negative_id.numel(), " ids for ", negative.size(0),
                     " negatives");
  const Rows query(h, normalize), right(positive, normalize), wrong(negative, normalize);
  const Tensor q = query.value.to(at::kFloat), e = right.value.to(at::kFloat);
  Tensor own = (q * e).sum(1) / temperature;
  if (log_q_positive) own = own - log_q_positive->to(at::kFloat);
  SoftmaxProblem problem{query.value, wrong.value};
  problem.log_q = floats(log_q_negative);
  if (remove_hits) {
    problem.row_id = int64_vector(target_id, h, "target_id");
    problem.column_id = int64_vector(negative_id, h, "negative_id");
  }
  problem.extra = own.contiguous();
  problem.temperature = temperature;
  problem.gradient = gradient;
  const SoftmaxResult r = softmax_rows(problem);
  const Tensor lse = r.max + r.sum.log();
  const Tensor loss = total(lse - own);
  if (!gradient) {
    const Tensor none = at::empty({0}, h.options());
    return {loss, none, none.to(positive.scalar_type()), none.to(negative.scalar_type())};
  }
  const Tensor d_own = ((own - lse).expm1() / temperature).unsqueeze(1);
  const Tensor d_h = (r.d_h.to(at::kFloat) + d_own * e).to(h.scalar_type());
  const Tensor d_positive = (d_own * q).to(positive.scalar_type());
  return {loss, query.back(d_h), right.back(d_positive), wrong.back(r.d_items)};
}

Four sampled_meta(const Tensor& h, const Tensor& positive, const Tensor& negative, const Tensor&,
                  const Tensor&, const OptionalTensor&, const OptionalTensor&, double, bool, bool,
                  bool gradient) {
  return {scalar_meta(h), gradient_meta(h, gradient), gradient_meta(positive, gradient),
          gradient_meta(negative, gradient)};
}

Four call_sampled(const Tensor& h, const Tensor& positive, const Tensor& negative,
                  const Tensor& target_id, const Tensor& negative_id,
                  const OptionalTensor& log_q_positive, const OptionalTensor& log_q_negative,
                  double temperature, bool normalize, bool remove_hits, bool gradient) {
  static const auto op =
      find_operator<decltype(sampled_softmax_forward)>("tautline::sampled_softmax_forward");
  return op.call(h, positive, negative, target_id, negative_id, log_q_positive, log_q_negative,
                 temperature, normalize, remove_hits, gradient);
}

struct SampledSoftmax : torch::autograd::Function<SampledSoftmax> {
  static Tensor forward(AutogradContext* ctx, const Tensor& h, const Tensor& positive,
                        const Tensor& negative, const Tensor& target_id, const Tensor& negative_id,
                        const OptionalTensor& log_q_positive, const OptionalTensor& log_q_negative,
                        double temperature, bool normalize, bool remove_hits, bool gradient) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto [loss, d_h, d_positive, d_negative] =
        call_sampled(h, positive, negative, target_id, negative_id, log_q_positive, log_q_negative,
                     temperature, normalize, remove_hits, gradient);
    ctx->save_for_backward({d_h, d_positive, d_negative});
    return loss;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    variable_list result(11);
    for (int i = 0; i < 3; ++i) result[i] = scaled(saved[i], gradients[0]);
    return result;
  }
};

Tensor sampled_softmax_plain(const Tensor& h, const Tensor& positive, const Tensor& negative,
                             const Tensor& target_id, const Tensor& negative_id,
                             const OptionalTensor& log_q_positive,
                             const OptionalTensor& log_q_negative, double temperature,
                             bool normalize, bool remove_hits) {
  return std::get<0>(call_sampled(h, positive, negative, target_id, negative_id, log_q_positive,
                                  log_q_negative, temperature, normalize, remove_hits, false));
}

}  // namespace

Tensor sampled_softmax(const Tensor& h, const Tensor& positive, const Tensor& negative,
                       const Tensor& target_id, const Tensor& negative_id,
                       const OptionalTensor& log_q_positive, const OptionalTensor& log_q_negative,
                       double temperature, bool normalize, bool remove_hits) {
  return SampledSoftmax::apply(h, positive, negative, target_id, negative_id, log_q_positive,
                               log_q_negative, temperature, normalize, remove_hits,
                               wanted({h, positive, negative}));
}

TORCH_LIBRARY_FRAGMENT(tautline, m) {
  m.def(
      "sampled_softmax(Tensor h, Tensor positive, Tensor negative, Tensor target_id, Tensor "
      "negative_id, Tensor? log_q_positive, Tensor? log_q_negative, float temperature, bool "
      "normalize, bool remove_hits) -> Tensor");
  m.def(
      "sampled_softmax_forward(Tensor h, Tensor positive, Tensor negative, Tensor target_id, "
      "Tensor negative_id, Tensor? log_q_positive, Tensor? log_q_negative, float temperature, "
      "bool normalize, bool remove_hits, bool gradient) -> (Tensor, Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(tautline, CPU, m) { m.impl("sampled_softmax_forward", sampled_softmax_forward); }
TORCH_LIBRARY_IMPL(tautline, CUDA, m) {
  m.impl("sampled_softmax_forward", sampled_softmax_forward);
}
TORCH_LIBRARY_IMPL(tautline, Meta, m) { m.impl("sampled_softmax_forward", sampled_meta); }
TORCH_LIBRARY_IMPL(tautline, CompositeExplicitAutograd, m) {
  m.impl("sampled_softmax", sampled_softmax_plain);
}
TORCH_LIBRARY_IMPL(tautline, Autograd, m) { m.impl("sampled_softmax", sampled_softmax); }

}  // namespace tautline::ops
