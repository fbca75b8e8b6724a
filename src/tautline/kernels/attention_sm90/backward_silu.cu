// GDPA with SiLU.
#include "tautline/kernels/attention_sm90/backward.cuh"
#include "tautline/kernels/attention_sm90/backward_pointwise.cuh"

namespace tautline::kernels::sm90 {

template <class E, int kD>
using Config =
    BackwardConfig<E, kD, kD == 64 ? 128 : 64, PointwiseScores<E, ScoreActivation::kSilu>>;

void silu_backward_bf16_d64(const AttentionSm90Backward& p) {
  launch_backward<Config<cutlass::bfloat16_t, 64>>(p);
}
void silu_backward_bf16_d128(const AttentionSm90Backward& p) {
  launch_backward<Config<cutlass::bfloat16_t, 128>>(p);
}
void silu_backward_fp16_d64(const AttentionSm90Backward& p) {
  launch_backward<Config<cutlass::half_t, 64>>(p);
}
void silu_backward_fp16_d128(const AttentionSm90Backward& p) {
  launch_backward<Config<cutlass::half_t, 128>>(p);
}

}  // namespace tautline::kernels::sm90
