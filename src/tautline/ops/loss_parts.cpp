#include "tautline/ops/loss_parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/scalar_tensor.h>

#include "tautline/base/error.h"

namespace tautline::ops {

Tensor total(const Tensor& rows) {
  if (!rows.is_cpu()) return rows.sum(at::kFloat);
  double sum = 0;
  for (const float *x = rows.const_data_ptr<float>(), *end = x + rows.numel(); x != end; ++x)
    sum += *x;
  return at::scalar_tensor(sum, rows.options());
}

Rows::Rows(const Tensor& x, bool normalize) : value(x) {
  if (normalize) std::tie(value, norm) = l2_normalize_forward(x);
}

Tensor Rows::back(const Tensor& gradient) const {
  return norm.defined() ? l2_normalize_backward(gradient, value, norm) : gradient;
}

void check_softmax(const Tensor& h, const Tensor& items, const Tensor& target, double temperature) {
  if (h.dim() != 2 || items.dim() != 2 || h.size(1) != items.size(1))
    throw user_error("softmax: h ", h.sizes(), " and items ", items.sizes(),
                     " are not [N, E] and [V, E]");
  if (target.dim() != 1 || target.size(0) != h.size(0))
    throw user_error("softmax: ", target.sizes(), " targets for ", h.size(0), " rows");
  if (!(temperature > 0)) throw user_error("softmax: temperature ", temperature, " is not above 0");
}

void check_targets(const Tensor& target, int64_t lowest, int64_t classes) {
  if (!target.is_cpu()) return;
  const auto* t = target.const_data_ptr<int64_t>();
  for (int64_t n = 0; n < target.numel(); ++n)
    if (t[n] < lowest || t[n] >= classes)
      throw user_error("softmax: target ", t[n], " of row ", n, " is not in [", lowest, ", ",
                       classes, ")");
}

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

}  // namespace tautline::ops
