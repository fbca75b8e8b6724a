// Softmax, few queries.
#include "tautline/kernels/attention_sm90/backward_few.cuh"

namespace tautline::kernels::sm90 {

template <class E, int kD>
using Config = FewConfig<E, kD, SoftmaxScores<E>>;

void softmax_backward_few_bf16_d64(const AttentionSm90Backward& p) {
  launch_backward_few<Config<cutlass::bfloat16_t, 64>>(p);
}
void softmax_backward_few_bf16_d128(const AttentionSm90Backward& p) {
  launch_backward_few<Config<cutlass::bfloat16_t, 128>>(p);
}
void softmax_backward_few_fp16_d64(const AttentionSm90Backward& p) {
  launch_backward_few<Config<cutlass::half_t, 64>>(p);
}
void softmax_backward_few_fp16_d128(const AttentionSm90Backward& p) {
  launch_backward_few<Config<cutlass::half_t, 128>>(p);
}

}  // namespace tautline::kernels::sm90
