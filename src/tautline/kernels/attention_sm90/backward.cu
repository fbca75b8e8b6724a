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
    other_backward_fp16_d64, other_backward_fp16_d128, softmax_backward_few_bf16_d64,
    softmax_backward_few_bf16_d128, softmax_backward_few_fp16_d64, softmax_backward_few_fp16_d128,
    silu_fast_backward_few_bf16_d64, silu_fast_backward_few_bf16_d128,
    gelu_tanh_fast_backward_few_bf16_d64, gelu_tanh_fast_backward_few_bf16_d128;
}  // namespace sm90

const char* attention_backward_sm90_refuses(const AttentionProblem& p) {
  if (!hopper::fits_map(p.d_o, p.heads) || !hopper::fits_map(p.d_k, p.kv_heads) ||
      !hopper::fits_map(p.d_v, p.kv_heads))
    return "strides of gradients must be multiples of 8 elements, addresses of 16 bytes";
  return nullptr;
}

int64_t attention_backward_sm90_query_gradients(const AttentionSm90Backward& p) {
  return sm90::has_few_queries(p) ? sm90::few_ranks(p) : p.sequences;
}

int64_t attention_backward_sm90_workspace(const AttentionSm90Backward& p) {
  return sm90::backward_workspace(p).end;
}

void attention_backward_sm90(const AttentionSm90Backward& p) {
  using namespace sm90;
  const bool half = p.element == Element::kFloat16, wide = columns_of(p) == 128;
  const int scores = p.softmax                                    ? 0
                     : p.activation == ScoreActivation::kSilu     ? 1
                     : p.activation == ScoreActivation::kGeluTanh ? 2
                                                                  : 3;
  if (has_few_queries(p)) {
    constexpr Backward* kFew[4][2] = {
        {softmax_backward_few_bf16_d64, softmax_backward_few_bf16_d128},
        {silu_fast_backward_few_bf16_d64, silu_fast_backward_few_bf16_d128},
        {gelu_tanh_fast_backward_few_bf16_d64, gelu_tanh_fast_backward_few_bf16_d128},
        {softmax_backward_few_fp16_d64, softmax_backward_few_fp16_d128}};
    return kFew[half ? 3 : scores][wide](p);
  }
  constexpr Backward* kFast[2][2] = {
      {silu_fast_backward_bf16_d64, silu_fast_backward_bf16_d128},
      {gelu_tanh_fast_backward_bf16_d64, gelu_tanh_fast_backward_bf16_d128}};
  if (is_fast(p)) return kFast[scores - 1][wide](p);
  constexpr Backward* kKernels[4][2][2] = {
      {{softmax_backward_bf16_d64, softmax_backward_bf16_d128},
       {softmax_backward_fp16_d64, softmax_backward_fp16_d128}},
      {{silu_backward_bf16_d64, silu_backward_bf16_d128},
       {silu_backward_fp16_d64, silu_backward_fp16_d128}},
      {{gelu_tanh_backward_bf16_d64, gelu_tanh_backward_bf16_d128},
       {gelu_tanh_backward_fp16_d64, gelu_tanh_backward_fp16_d128}},
      {{other_backward_bf16_d64, other_backward_bf16_d128},
       {other_backward_fp16_d64, other_backward_fp16_d128}}};
  kKernels[scores][half][wide](p);
}

}  // namespace tautline::kernels
