// GDPA, bf16, head dimension 64.
#include "tautline/kernels/attention_backward_sm90.cuh"
#include "tautline/kernels/attention_backward_sm90_pointwise.cuh"

namespace tautline::kernels::sm90 {

void gdpa_backward_bf16_d64(const AttentionSm90Backward& p) {
  using E = cutlass::bfloat16_t;
  launch_backward<BackwardConfig<E, 64, 128, PointwiseScores<E>>>(p);
}

}  // namespace tautline::kernels::sm90
