// sampled_softmax: the positive of each row against negatives that all rows share.
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tautline/base/error.h"
#include "tautline/kernels/softmax_positive.h"
#include "tautline/ops/loss_parts.h"
#include "tautline/ops/on_its_device.h"

namespace tautline::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

OptionalTensor floats(const OptionalTensor& x) {
  return x ? OptionalTensor(float_vector(*x)) : std::nullopt;
}

/// A row's own class: its logit, and its part of the loss and of the gradients. On CUDA two kernels
/// (kernels/softmax_positive.h), on the CPU the same formulas.
struct Positive {
  Tensor q, e, log_q;  // [N, E], [N, E], [N] or undefined
  double temperature;
  Tensor own;  // [N] float32

  Positive(const Rows& query, const Rows& right, const OptionalTensor& log_q, double temperature)
      : q(query.value.contiguous()), e(right.value.contiguous()), temperature(temperature) {
    if (log_q) this->log_q = float_vector(*log_q);
    if (q.is_cpu()) {
      own = (q.to(at::kFloat) * e.to(at::kFloat)).sum(1) / temperature;
      if (log_q) own = own - this->log_q;
      return;
    }
    own = at::empty({q.size(0)}, float_like(q));
    if constexpr (kCudaBuild) kernels::softmax_positive_forward_cuda(params());
  }

  /// (loss of each row, d_h, d_positive); the gradients only where asked.
  Three finish(const SoftmaxResult& r, bool gradient) const {
    if (q.is_cpu()) {
      const Tensor lse = r.max + r.sum.log(), loss = lse - own;
      if (!gradient) return {loss, Tensor(), Tensor()};
      const Tensor d_own = ((own - lse).expm1() / temperature).unsqueeze(1);
      return {loss, (r.d_h.to(at::kFloat) + d_own * e.to(at::kFloat)).to(q.scalar_type()),
              (d_own * q.to(at::kFloat)).to(e.scalar_type())};
    }
    const Tensor loss = at::empty(own.sizes(), own.options());
    const Tensor d_positive = gradient ? at::empty(e.sizes(), e.options()) : Tensor();
    kernels::SoftmaxPositive p = params();
    p.max = r.max.const_data_ptr<float>();
    p.sum = r.sum.const_data_ptr<float>();
    p.loss = loss.mutable_data_ptr<float>();
    if (gradient) {
      p.d_h = r.d_h.mutable_data_ptr();
      p.d_positive = d_positive.mutable_data_ptr();
    }
    if constexpr (kCudaBuild) kernels::softmax_positive_backward_cuda(p);
    return {loss, r.d_h, d_positive};
  }

 private:
  kernels::SoftmaxPositive params() const {
    kernels::SoftmaxPositive p;
    p.h = q.const_data_ptr();
    p.positive = e.const_data_ptr();
    if (log_q.defined()) p.log_q = log_q.const_data_ptr<float>();
    p.own = own.mutable_data_ptr<float>();
    p.rows = q.size(0);
    p.width = q.size(1);
    p.scale = 1 / temperature;
    p.h_element = element_of(q);
    p.positive_element = element_of(e);
    p.stream = stream_of(q);
    return p;
  }
};

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
  const Positive own(query, right, log_q_positive, temperature);
  SoftmaxProblem problem{query.value, wrong.value};
  problem.log_q = floats(log_q_negative);
  if (remove_hits) {
    problem.row_id = int64_vector(target_id, h, "target_id");
    problem.column_id = int64_vector(negative_id, h, "negative_id");
  }
  problem.extra = own.own;
  problem.temperature = temperature;
  problem.gradient = gradient;
  const SoftmaxResult r = softmax_rows(problem);
  const auto [losses, d_h, d_positive] = own.finish(r, gradient);
  const Tensor loss = total(losses);
  if (!gradient) {
    const Tensor none = at::empty({0}, h.options());
    return {loss, none, none.to(positive.scalar_type()), none.to(negative.scalar_type())};
  }
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
  m.impl("sampled_softmax_forward", on_its_device<sampled_softmax_forward>);
}
TORCH_LIBRARY_IMPL(tautline, Meta, m) { m.impl("sampled_softmax_forward", sampled_meta); }
TORCH_LIBRARY_IMPL(tautline, CompositeExplicitAutograd, m) {
  m.impl("sampled_softmax", sampled_softmax_plain);
}
TORCH_LIBRARY_IMPL(tautline, Autograd, m) { m.impl("sampled_softmax", sampled_softmax); }

}  // namespace tautline::ops
