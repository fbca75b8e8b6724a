// softmax_rows on cards whose kernels keep the logits to themselves (kernels/softmax_loss_sm90).
// Only in the CUDA build.
#pragma once

#include "tautline/ops/softmax_rows.h"

namespace tautline::ops {

/// Fills `result` and says true where such a kernel takes the problem; else leaves it alone. h and
/// items (in h's type) as kernels read them.
bool softmax_loss_cuda(const SoftmaxProblem& problem, const at::Tensor& h, const at::Tensor& items,
                       SoftmaxResult& result);

}  // namespace tautline::ops
