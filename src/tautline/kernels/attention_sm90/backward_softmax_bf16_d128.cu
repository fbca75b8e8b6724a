// Softmax, bf16, head dimension 128.
#include "tautline/kernels/attention_sm90/backward.cuh"

namespace tautline::kernels::sm90 {

void softmax_backward_bf16_d128(const AttentionSm90Backward& p) {
  using E = cutlass::bfloat16_t;
  launch_backward<BackwardConfig<E, 128, 64, SoftmaxScores<E>>>(p);
}

}  // namespace tautline::kernels::sm90
