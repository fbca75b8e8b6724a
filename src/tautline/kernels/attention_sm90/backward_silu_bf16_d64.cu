// GDPA with SiLU, bf16, head dimension 64.
#include "tautline/kernels/attention_sm90/backward.cuh"
#include "tautline/kernels/attention_sm90/backward_pointwise.cuh"

namespace tautline::kernels::sm90 {

void silu_backward_bf16_d64(const AttentionSm90Backward& p) {
  using E = cutlass::bfloat16_t;
  using enum ScoreActivation;
  launch_backward<BackwardConfig<E, 64, 128, PointwiseScores<E, kSilu>>>(p);
}

}  // namespace tautline::kernels::sm90
