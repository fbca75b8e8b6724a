// Between the problems and the kernels of the Hopper forward: one function for each form of score,
// each in a file of its own, since each is eight kernels (bf16 and fp16, keys of 64 and 128 columns,
// values of 64 and 128).
#pragma once

#include "tautline/kernels/attention_order.h"
#include "tautline/kernels/attention_problem.h"

namespace tautline::kernels::sm90 {

/// Columns of values, or of keys where they are more, of the kernel that takes the problem.
inline int forward_columns(const AttentionProblem& p) {
  return p.head_dim <= 64 && p.value_dim <= 64 ? 64 : 128;
}

/// Queries of an order's tile, by those columns.
template <int kColumns>
inline constexpr int kForwardTile = kColumns == 128 ? 384 : 512;

struct ScoreNumbers {
  float scale = 1;                                 // of scores (times log2(e) for softmax)
  float finish = 1;                                // of outputs
  float slope = 0, offset = 1, low = 1, high = 1;  // of a gate
  int32_t zero = 0;                                // where the compiler cannot see it
};

struct Forward {
  const AttentionProblem& p;
  const AttentionOrder& order;
  ScoreNumbers numbers;
  float* lse = nullptr;  // of softmax
};

void forward_softmax(const Forward& f);
void forward_gate(const Forward& f);
void forward_silu(const Forward& f);
void forward_silu_fast(const Forward& f);
void forward_gelu(const Forward& f);
void forward_gelu_tanh(const Forward& f);
void forward_gelu_tanh_fast(const Forward& f);

}  // namespace tautline::kernels::sm90
