// GDPA by tanh.approx, bf16, few queries.
#include "tautline/kernels/attention_sm90/backward_few.cuh"
#include "tautline/kernels/attention_sm90/backward_pointwise.cuh"

namespace tautline::kernels::sm90 {

using E = cutlass::bfloat16_t;
template <int kD, ScoreActivation kActivation>
using Config = FewConfig<E, kD, FastScores<E, kActivation>>;
using enum ScoreActivation;

void silu_fast_backward_few_bf16_d64(const AttentionSm90Backward& p) {
  launch_backward_few<Config<64, kSilu>>(p);
}
void silu_fast_backward_few_bf16_d128(const AttentionSm90Backward& p) {
  launch_backward_few<Config<128, kSilu>>(p);
}
void gelu_tanh_fast_backward_few_bf16_d64(const AttentionSm90Backward& p) {
  launch_backward_few<Config<64, kGeluTanh>>(p);
}
void gelu_tanh_fast_backward_few_bf16_d128(const AttentionSm90Backward& p) {
  launch_backward_few<Config<128, kGeluTanh>>(p);
}

}  // namespace tautline::kernels::sm90
