// GDPA with the other functions.
#include "tautline/kernels/attention_sm90/backward.cuh"
#include "tautline/kernels/attention_sm90/backward_pointwise.cuh"

namespace tautline::kernels::sm90 {

template <class E>
using OtherScores = PointwiseScores<E, ScoreActivation::kIdentity, ScoreActivation::kRelu,
                                    ScoreActivation::kSquaredRelu, ScoreActivation::kGelu,
                                    ScoreActivation::kLeakyRelu, ScoreActivation::kHardSwish>;
template <class E, int kD>
using Config = BackwardConfig<E, kD, kD == 64 ? 128 : 64, OtherScores<E>>;

void other_backward_bf16_d64(const AttentionSm90Backward& p) {
  launch_backward<Config<cutlass::bfloat16_t, 64>>(p);
}
void other_backward_bf16_d128(const AttentionSm90Backward& p) {
  launch_backward<Config<cutlass::bfloat16_t, 128>>(p);
}
void other_backward_fp16_d64(const AttentionSm90Backward& p) {
  launch_backward<Config<cutlass::half_t, 64>>(p);
}
void other_backward_fp16_d128(const AttentionSm90Backward& p) {
  launch_backward<Config<cutlass::half_t, 128>>(p);
}

}  // namespace tautline::kernels::sm90
