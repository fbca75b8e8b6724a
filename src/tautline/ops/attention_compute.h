// What the operators jagged_attention and gdpa do, without autograd and dispatch, for operators that
// are made of them.
#pragma once

#include <string_view>
#include <tuple>

#include "tautline/ops/attention_arguments.h"

namespace tautline::ops {

/// (o, lse [H, rows]). UserError as jagged_attention.
std::tuple<Tensor, Tensor> compute_attention(const AttentionArguments& a, double scale);
AttentionGradients compute_attention_backward(const AttentionArguments& a, const Tensor& d_o,
                                              const Tensor& o, const Tensor& lse, double scale,
                                              const GradientViews& into = {});

Tensor compute_gdpa(const AttentionArguments& a, std::string_view activation, double alpha,
                    double beta, bool fast = false);
AttentionGradients compute_gdpa_backward(const AttentionArguments& a, const Tensor& d_o,
                                         std::string_view activation, double alpha, double beta,
                                         bool fast = false, const GradientViews& into = {});

}  // namespace tautline::ops
