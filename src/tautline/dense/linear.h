// A linear layer in bf16 over FP32 master weights. Its backward multiplies the weight's gradient
// straight into the flat buffer, in FP32: autograd would round it to bf16, cast it back and add it
// to zeros, 24 bytes of memory traffic a weight instead of 4.
#pragma once

#include <ATen/core/Tensor.h>

#include "tautline/dense/parameters.h"

namespace tautline::dense {

/// x [T, in] in bf16, weight [out, in], bias [out] FP32 or undefined: x weight^T + bias, [T, out] in
/// bf16. Differentiable once. The parameter must outlive the backward, which writes
/// weight.gradient (Parameter::add_product) and gives autograd none: the weight is for backward(), not
/// for autograd::grad(), and all its uses are this function's. Forward and backward run on one stream.
at::Tensor linear_bf16(const at::Tensor& x, const Parameter& weight, const at::Tensor& bias);

}  // namespace tautline::dense
