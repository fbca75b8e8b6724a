// GDPA with GELU (tanh), fp16, head dimension 64.
#include "tautline/kernels/attention_sm90/backward.cuh"
#include "tautline/kernels/attention_sm90/backward_pointwise.cuh"

namespace tautline::kernels::sm90 {

void gelu_tanh_backward_fp16_d64(const AttentionSm90Backward& p) {
  using E = cutlass::half_t;
  using enum ScoreActivation;
  launch_backward<BackwardConfig<E, 64, 128, PointwiseScores<E, kGeluTanh>>>(p);
}

}  // namespace tautline::kernels::sm90
