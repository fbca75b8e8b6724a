// Which instantiation of backward.cuh a problem takes, and its workspace.
#include "tautline/kernels/attention_sm90/backward.h"
#include "tautline/kernels/attention_sm90/backward_workspace.h"
#include "tautline/kernels/hopper_map.h"

namespace tautline::kernels {
namespace sm90 {
using Backward = void(const AttentionSm90Backward&);
Backward softmax_backward_bf16_d64, softmax_backward_bf16_d128, softmax_backward_fp16_d64,
    softmax_backward_fp16_d128, silu_backward_bf16_d64, silu_backward_bf16_d128,
    silu_backward_fp16_d64, silu_backward_fp16_d128, gelu_tanh_backward_bf16_d64,
    gelu_tanh_backward_bf16_d128, gelu_tanh_backward_fp16_d64, gelu_tanh_backward_fp16_d128,
    silu_fast_backward_bf16_d64, silu_fast_backward_bf16_d128, gelu_tanh_fast_backward_bf16_d64,
    gelu_tanh_fast_backward_bf16_d128, other_backward_bf16_d64, other_backward_bf16_d128,
    other_backward_fp16_d64, other_backward_fp16_d128;
}  // namespace sm90

const char* attention_backward_sm90_refuses(const AttentionProblem& p) {
  if (!hopper::fits_map(p.d_o, p.heads) || !hopper::fits_map(p.d_k, p.kv_heads) ||
      !hopper::fits_map(p.d_v, p.kv_heads))
    return "strides of gradients must be multiples of 8 elements, addresses of 16 bytes";
  return nullptr;
}

int64_t attention_backward_sm90_workspace(const AttentionSm90Backward& p) {
  return sm90::backward_workspace(p).end;
}

void attention_backward_sm90(const AttentionSm90Backward& p) {
  using namespace sm90;
  constexpr Backward* kKernels[6][2][2] = {
      {{softmax_backward_bf16_d64, softmax_backward_bf16_d128},
       {softmax_backward_fp16_d64, softmax_backward_fp16_d128}},
      {{silu_backward_bf16_d64, silu_backward_bf16_d128},
       {silu_backward_fp16_d64, silu_backward_fp16_d128}},
      {{gelu_tanh_backward_bf16_d64, gelu_tanh_backward_bf16_d128},
       {gelu_tanh_backward_fp16_d64, gelu_tanh_backward_fp16_d128}},
      {{other_backward_bf16_d64, other_backward_bf16_d128},
       {other_backward_fp16_d64, other_backward_fp16_d128}},
      // Half's weights are finer than tanh.approx: it stays exact.
      {{silu_fast_backward_bf16_d64, silu_fast_backward_bf16_d128},
       {silu_backward_fp16_d64, silu_backward_fp16_d128}},
      {{gelu_tanh_fast_backward_bf16_d64, gelu_tanh_fast_backward_bf16_d128},
       {gelu_tanh_backward_fp16_d64, gelu_tanh_backward_fp16_d128}}};
  const int scores = p.softmax                                    ? 0
                     : p.activation == ScoreActivation::kSilu     ? 1
                     : p.activation == ScoreActivation::kGeluTanh ? 2
                                                                  : 3;
  const int fast = p.fast && (scores == 1 || scores == 2) ? 3 : 0;
  kKernels[scores + fast][p.element == Element::kFloat16][columns_of(p) == 128](p);
}

}  // namespace tautline::kernels
