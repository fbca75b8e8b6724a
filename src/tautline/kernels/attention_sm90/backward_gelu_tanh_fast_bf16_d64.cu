// GDPA with GELU (tanh) by tanh.approx, bf16, head dimension 64.
#include "tautline/kernels/attention_sm90/backward.cuh"
#include "tautline/kernels/attention_sm90/backward_pointwise.cuh"

namespace tautline::kernels::sm90 {

void gelu_tanh_fast_backward_bf16_d64(const AttentionSm90Backward& p) {
  using E = cutlass::bfloat16_t;
  launch_backward<BackwardConfig<E, 64, 128, FastScores<E, ScoreActivation::kGeluTanh>>>(p);
}

}  // namespace tautline::kernels::sm90
