// What the operators jagged_attention and gdpa have in common: their arguments, the checks of them,
// and the kernels' params made of them.
#pragma once

#include <cstdint>
#include <string_view>
#include <tuple>

#include "tautline/kernels/attention_problem.h"
#include "tautline/ops/ops.h"
#include "tautline/ops/support.h"

namespace tautline::ops {

/// The gradients of q, k, v, position_bias and time_bias; empty where there is no such table.
using AttentionGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

/// See jagged_attention in ops.h. References: it lives no longer than the operator's arguments.
struct AttentionArguments {
  const Tensor &q, &k, &v;
  const OptionalTensor& q_offsets;
  const Tensor& k_offsets;
  int64_t max_q, max_k;
  bool causal;
  int64_t window_left, window_right;
  const OptionalTensor &position_bias, &time_bias, &q_time, &k_time;
  const OptionalTensor& order;  // of attention_order, or none

  /// Rows of the output: Tq, or B * S where q_offsets is none.
  c10::SymInt rows() const;
};

/// UserError, beginning with `name`, unless the arguments fit together.
void check(const AttentionArguments& a, std::string_view name);

/// UserError unless the CUDA kernels take them: one type of two, widths to 256.
void check_cuda(const Tensor& q, const Tensor& k, const Tensor& v, std::string_view name);

/// Copies where the arguments are not what the kernels read (FP32 on the CPU); the params point into
/// them.
class AttentionTensors {
 public:
  explicit AttentionTensors(const AttentionArguments& a);
  /// All but the outputs.
  void fill(kernels::AttentionProblem& p) const;

 private:
  const AttentionArguments& a_;
  Tensor q_, k_, v_, q_offsets_, k_offsets_, position_, time_, q_time_, k_time_;
};

/// Where a backward is to write the gradients of q, k and v (views of one tensor, say); undefined:
/// into tensors of its own.
struct GradientViews {
  Tensor q, k, v;
};
/// The gradients where `into` wants them, if it does.
AttentionGradients placed(const AttentionGradients& gradients, const GradientViews& into);

/// A gradient's tensors, from before the kernel to after it.
class AttentionGradientTensors {
 public:
  /// Allocates them and the partial sums, and points `p` at them.
  AttentionGradientTensors(const AttentionArguments& a, const Tensor& d_o,
                           kernels::AttentionProblem& p, const GradientViews& into);
  /// Sums of partial gradients, in their order; in the arguments' types.
  AttentionGradients finish();

 private:
  /// The gradient of queries that stand in for every sequence.
  Tensor summed_parts() const;
  const AttentionArguments& a_;
  kernels::AttentionProblem& p_;
  GradientViews into_;
  Tensor d_o_, d_q_, d_k_, d_v_, d_position_, d_time_, position_partial_, time_partial_;
};

/// Unit stride along D, on the CPU in FP32: a view of the input wherever that is possible.
Tensor heads_readable(const Tensor& x);
/// What kernels write where `x` is their input: FP32 on the CPU.
at::TensorOptions result_options(const Tensor& x);
kernels::HeadsView heads_view(const Tensor& x);

/// The operators' causal, window_left and window_right.
kernels::AttentionWindow window_of(bool causal, int64_t left, int64_t right);

/// Elements of one task of the CPU kernel, for the grain: scores of a mean sequence.
int64_t task_cost(const kernels::AttentionProblem& p);

/// The meta kernel of both backwards.
AttentionGradients gradients_meta(const AttentionArguments& a);

}  // namespace tautline::ops
