// full_softmax, sampled_softmax, their sharded parts, l2_normalize and binary_loss.
//
// The losses compute their gradients with the forward (the chunk of logits is in cache then), keep
// those, and scale them in the backward.
#include <ATen/TensorOperators.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tautline/base/error.h"
#include "tautline/ops/ops.h"
#include "tautline/ops/softmax_rows.h"
#include "tautline/ops/support.h"

namespace tautline::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Pair = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

/// The sum of N numbers as 0-dim float32; on the CPU one thread adds in double, in order.
Tensor total(const Tensor& rows) {
  if (!rows.is_cpu()) return rows.sum(at::kFloat);
  double sum = 0;
  for (const float *x = rows.const_data_ptr<float>(), *end = x + rows.numel(); x != end; ++x)
    sum += *x;
  return at::scalar_tensor(sum, rows.options());
}

/// A matrix whose rows are normalised where asked, and the way back.
struct Rows {
  Tensor value, norm;
  Rows(const Tensor& x, bool normalize) : value(x) {
    if (normalize) std::tie(value, norm) = l2_normalize_forward(x);
  }
  Tensor back(const Tensor& gradient) const {
    return norm.defined() ? l2_normalize_backward(gradient, value, norm) : gradient;
  }
};

void check_softmax(const Tensor& h, const Tensor& items, const Tensor& target, double temperature) {
  if (h.dim() != 2 || items.dim() != 2 || h.size(1) != items.size(1))
    throw user_error("softmax: h ", h.sizes(), " and items ", items.sizes(),
                     " are not [N, E] and [V, E]");
  if (target.dim() != 1 || target.size(0) != h.size(0))
    throw user_error("softmax: ", target.sizes(), " targets for ", h.size(0), " rows");
  if (!(temperature > 0)) throw user_error("softmax: temperature ", temperature, " is not above 0");
}

/// The four optional arguments of the operators, checked, as the kernels read them.
Repeats checked_repeats(const OptionalTensor& bias, const OptionalTensor& column,
                        const OptionalTensor& first, const OptionalTensor& last, const Tensor& h,
                        int64_t classes) {
  if (!bias) return {};
  if (!column || !first || !last || bias->numel() != 1)
    throw user_error(
        "softmax: repeat_bias must be one number and needs repeat_column, "
        "repeat_first and repeat_last beside it");
  const Repeats r{float_vector(*bias), int64_vector(*column, h, "repeat_column"),
                  int64_vector(*first, h, "repeat_first"), int64_vector(*last, h, "repeat_last")};
  if (r.first.numel() != h.size(0) || r.last.numel() != h.size(0))
    throw user_error("softmax: repeat_first and repeat_last have ", r.first.numel(), " and ",
                     r.last.numel(), " entries for ", h.size(0), " rows");
  if (!h.is_cpu()) return r;
  const auto *c = r.column.const_data_ptr<int64_t>(), *a = r.first.const_data_ptr<int64_t>(),
             *b = r.last.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < r.column.numel(); ++i)
    if (c[i] < -1 || c[i] >= classes)
      throw user_error("softmax: repeat_column ", c[i], " at ", i, " is not in [-1, ", classes,
                       ")");
  for (int64_t n = 0; n < h.size(0); ++n)
    if (a[n] < 0 || b[n] < a[n] || b[n] > r.column.numel())
      throw user_error("softmax: row ", n, " repeats columns [", a[n], ", ", b[n], ") of ",
                       r.column.numel());
  return r;
}

/// The sum of the rows' parts as [1], or nothing.
Tensor bias_gradient(const SoftmaxResult& r, const Tensor& h) {
  return r.d_bias.defined() ? total(r.d_bias).reshape({1}) : at::empty({0}, float_like(h));
}

void check_targets(const Tensor& target, int64_t lowest, int64_t classes) {
  if (!target.is_cpu()) return;
  const auto* t = target.const_data_ptr<int64_t>();
  for (int64_t n = 0; n < target.numel(); ++n)
    if (t[n] < lowest || t[n] >= classes)
      throw user_error("softmax: target ", t[n], " of row ", n, " is not in [", lowest, ", ",
                       classes, ")");
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

Tensor scalar_meta(const Tensor& h) { return at::empty({}, float_like(h)); }
Tensor gradient_meta(const Tensor& x, bool gradient) {
  return gradient ? at::empty_symint(x.sym_sizes(), x.options()) : at::empty({0}, x.options());
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
Four sampled_meta(const Tensor& h, const Tensor& positive, const Tensor& negative, const Tensor&,
                  const Tensor&, const OptionalTensor&, const OptionalTensor&, double, bool, bool,
                  bool gradient) {
  return {scalar_meta(h), gradient_meta(h, gradient), gradient_meta(positive, gradient),
          gradient_meta(negative, gradient)};
}

Four call_full(const Tensor& h, const Tensor& items, const Tensor& target, double temperature,
               bool normalize, const OptionalTensor& bias, const OptionalTensor& column,
               const OptionalTensor& first, const OptionalTensor& last, bool gradient) {
  static const auto op =
      find_operator<decltype(full_softmax_forward)>("tautline::full_softmax_forward");
  return op.call(h, items, target, temperature, normalize, bias, column, first, last, gradient);
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

Tensor scaled(const Tensor& gradient, const Tensor& by) {
  return gradient * by.to(gradient.scalar_type());
}

/// Will a backward come? Asked before the function's forward, which runs without grad mode.
bool wanted(at::ArrayRef<Tensor> inputs) {
  return at::GradMode::is_enabled() &&
         std::any_of(inputs.begin(), inputs.end(),
                     [](const Tensor& x) { return x.requires_grad(); });
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

struct Normalize : torch::autograd::Function<Normalize> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    static const auto op =
        find_operator<decltype(l2_normalize_forward)>("tautline::l2_normalize_forward");
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto [y, norm] = op.call(x);
    ctx->save_for_backward({y, norm});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    static const auto op =
        find_operator<decltype(l2_normalize_backward)>("tautline::l2_normalize_backward");
    const auto saved = ctx->get_saved_variables();
    return {op.call(gradients[0], saved[0], saved[1])};
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
Tensor sampled_softmax_plain(const Tensor& h, const Tensor& positive, const Tensor& negative,
                             const Tensor& target_id, const Tensor& negative_id,
                             const OptionalTensor& log_q_positive,
                             const OptionalTensor& log_q_negative, double temperature,
                             bool normalize, bool remove_hits) {
  return std::get<0>(call_sampled(h, positive, negative, target_id, negative_id, log_q_positive,
                                  log_q_negative, temperature, normalize, remove_hits, false));
}
Tensor l2_normalize_plain(const Tensor& x) { return std::get<0>(l2_normalize_forward(x)); }

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
Pair normalize_meta(const Tensor& x) {
  return {gradient_meta(x, true), at::empty_symint({x.sym_size(0)}, float_like(x))};
}
Tensor normalize_backward_meta(const Tensor&, const Tensor& y, const Tensor&) {
  return gradient_meta(y, true);
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
Tensor sampled_softmax(const Tensor& h, const Tensor& positive, const Tensor& negative,
                       const Tensor& target_id, const Tensor& negative_id,
                       const OptionalTensor& log_q_positive, const OptionalTensor& log_q_negative,
                       double temperature, bool normalize, bool remove_hits) {
  return SampledSoftmax::apply(h, positive, negative, target_id, negative_id, log_q_positive,
                               log_q_negative, temperature, normalize, remove_hits,
                               wanted({h, positive, negative}));
}
Tensor l2_normalize(const Tensor& x) { return Normalize::apply(x); }

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

Tensor binary_loss(const Tensor& logits, const Tensor& label) {
  if (logits.sizes() != label.sizes())
    throw user_error("binary_loss: logits ", logits.sizes(), " and label ", label.sizes(),
                     " differ in shape");
  const Tensor absent = label.isnan(), truth = label.to(at::kFloat).masked_fill(absent, 0.0);
  const Tensor loss = at::binary_cross_entropy_with_logits(
      logits.to(at::kFloat), truth, std::nullopt, std::nullopt, at::Reduction::None);
  return loss.masked_fill(absent, 0.0).sum();
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
      "sampled_softmax(Tensor h, Tensor positive, Tensor negative, Tensor target_id, Tensor "
      "negative_id, Tensor? log_q_positive, Tensor? log_q_negative, float temperature, bool "
      "normalize, bool remove_hits) -> Tensor");
  m.def(
      "sampled_softmax_forward(Tensor h, Tensor positive, Tensor negative, Tensor target_id, "
      "Tensor negative_id, Tensor? log_q_positive, Tensor? log_q_negative, float temperature, "
      "bool normalize, bool remove_hits, bool gradient) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "softmax_statistics(Tensor h, Tensor items, Tensor target_local, float temperature, Tensor? "
      "repeat_bias=None, Tensor? repeat_column=None, Tensor? repeat_first=None, Tensor? "
      "repeat_last=None) -> (Tensor, Tensor, Tensor)");
  m.def(
      "softmax_gradient(Tensor h, Tensor items, Tensor lse, Tensor target_local, float "
      "temperature, float scale, Tensor? repeat_bias=None, Tensor? repeat_column=None, Tensor? "
      "repeat_first=None, Tensor? repeat_last=None) -> (Tensor, Tensor, Tensor)");
  m.def("l2_normalize(Tensor x) -> Tensor");
  m.def("l2_normalize_forward(Tensor x) -> (Tensor, Tensor)");
  m.def("l2_normalize_backward(Tensor d_y, Tensor y, Tensor norm) -> Tensor");
  m.def("binary_loss(Tensor logits, Tensor label) -> Tensor", binary_loss);
}

namespace {
void implement(torch::Library& m) {
  m.impl("full_softmax_forward", full_softmax_forward);
  m.impl("sampled_softmax_forward", sampled_softmax_forward);
  m.impl("softmax_statistics", statistics_op);
  m.impl("softmax_gradient", gradient_op);
  m.impl("l2_normalize_forward", l2_normalize_forward);
  m.impl("l2_normalize_backward", l2_normalize_backward);
}
}  // namespace
TORCH_LIBRARY_IMPL(tautline, CPU, m) { implement(m); }
TORCH_LIBRARY_IMPL(tautline, CUDA, m) { implement(m); }
TORCH_LIBRARY_IMPL(tautline, Meta, m) {
  m.impl("full_softmax_forward", full_meta);
  m.impl("sampled_softmax_forward", sampled_meta);
  m.impl("softmax_statistics", statistics_meta);
  m.impl("softmax_gradient", gradient_op_meta);
  m.impl("l2_normalize_forward", normalize_meta);
  m.impl("l2_normalize_backward", normalize_backward_meta);
}
TORCH_LIBRARY_IMPL(tautline, CompositeExplicitAutograd, m) {
  m.impl("full_softmax", full_softmax_plain);
  m.impl("sampled_softmax", sampled_softmax_plain);
  m.impl("l2_normalize", l2_normalize_plain);
}
TORCH_LIBRARY_IMPL(tautline, Autograd, m) {
  m.impl("full_softmax", full_softmax_autograd);
  m.impl("sampled_softmax", sampled_softmax);
  m.impl("l2_normalize", l2_normalize);
}

}  // namespace tautline::ops
