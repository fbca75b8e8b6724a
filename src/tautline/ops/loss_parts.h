// What the softmax losses share: checks, sums, rows that may be normalised, the four arguments of a
// repeat bias. The losses compute their gradients with the forward, which has the logits and their
// sums in its hands, keep those, and scale them in the backward.
#pragma once

#include <algorithm>
#include <tuple>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "tautline/ops/ops.h"
#include "tautline/ops/softmax_rows.h"
#include "tautline/ops/support.h"

namespace tautline::ops {

using Three = std::tuple<Tensor, Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

/// The sum of N numbers as 0-dim float32; on the CPU one thread adds in double, in order.
Tensor total(const Tensor& rows);

/// A matrix whose rows are normalised where asked, and the way back.
struct Rows {
  Tensor value, norm;
  Rows(const Tensor& x, bool normalize);
  Tensor back(const Tensor& gradient) const;
};

/// UserError: shapes that do not fit, a temperature that is not above 0.
void check_softmax(const Tensor& h, const Tensor& items, const Tensor& target, double temperature);
/// UserError: a target outside [lowest, classes); asked of CPU tensors alone.
void check_targets(const Tensor& target, int64_t lowest, int64_t classes);
/// A repeat bias's arguments as the kernels read them. UserError where they do not fit.
Repeats checked_repeats(const OptionalTensor& bias, const OptionalTensor& column,
                        const OptionalTensor& first, const OptionalTensor& last, const Tensor& h,
                        int64_t classes);

/// gradient * by, a 0-dim tensor, in gradient's type; an operator of its own, so that torch.compile
/// traces through it.
Tensor scaled(const Tensor& gradient, const Tensor& by);

/// Will a backward come? Asked before the function's forward, which runs without grad mode.
inline bool wanted(at::ArrayRef<Tensor> inputs) {
  return at::GradMode::is_enabled() &&
         std::any_of(inputs.begin(), inputs.end(),
                     [](const Tensor& x) { return x.requires_grad(); });
}

inline Tensor scalar_meta(const Tensor& h) { return at::empty({}, float_like(h)); }
inline Tensor gradient_meta(const Tensor& x, bool gradient) {
  return gradient ? at::empty_symint(x.sym_sizes(), x.options()) : at::empty({0}, x.options());
}

}  // namespace tautline::ops
