// GDPA with GELU (tanh) by tanh.approx, bf16.
#include "tautline/kernels/attention_sm90/backward.cuh"
#include "tautline/kernels/attention_sm90/backward_pointwise.cuh"

namespace tautline::kernels::sm90 {

template <class E, int kD>
using Config =
    BackwardConfig<E, kD, kD == 64 ? 128 : 64, FastScores<E, ScoreActivation::kGeluTanh>>;

void gelu_tanh_fast_backward_bf16_d64(const AttentionSm90Backward& p) {
  launch_backward<Config<cutlass::bfloat16_t, 64>>(p);
}
void gelu_tanh_fast_backward_bf16_d128(const AttentionSm90Backward& p) {
  launch_backward<Config<cutlass::bfloat16_t, 128>>(p);
}

}  // namespace tautline::kernels::sm90
