// The backward of jagged_attention (attention.h) and gdpa (gdpa.h) on Hopper (sm_90a): D and E
// multiples of 8 up to 128 (columns up to 64 or 128 are zeros), bf16 and fp16, no bias.
//
// A CTA takes items: a sequence of moderate size (is_one_item) with one key/value head, or 128 keys
// of a longer one. It keeps 128 keys and their values in shared memory, d_k and d_v in
// registers, and walks the tiles of queries that see them: five products a pair of tiles. d_q
// gathers in FP32 in L2: each thread owns the numbers that it adds to, so one CTA needs no atomics;
// the CTAs of a long sequence add to a tile of queries one after the other, in an order of their
// keys, told by a counter. So results are the same bits in every run. Where no sequence has more than
// 64 queries, a kernel of their own keeps d_q in registers instead (backward_few.cuh; softmax and fast
// forms, heads with keys of their own).
//
// Strides, above 0, are multiples of 8 elements and data aligned to 16 bytes (fits_map of
// hopper_map.h), tokens below 2^29.
#pragma once

#include <cstdint>

#include "tautline/kernels/attention_problem.h"
#include "tautline/kernels/gdpa.h"

namespace tautline::kernels {

struct AttentionSm90Backward {
  HeadsView q, k, v, o, d_o, d_q, d_k, d_v;  // o: softmax only
  const float* lse = nullptr;                // [H, rows]: softmax only
  // [B + 1], on the device. Where q_offsets is null, max_q queries stand in for every sequence, and
  // d_q is FP32, [attention_backward_sm90_query_gradients * max_q, H, D]: parts of their gradient.
  const int64_t *q_offsets = nullptr, *k_offsets = nullptr;
  int64_t sequences = 0, rows = 0, k_tokens = 0;  // B, Tq, Tk
  int64_t max_q = 0, max_k = 0;                   // longest sequence
  int32_t heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  AttentionWindow window;
  Element element = Element::kBFloat16;  // or kFloat16
  bool softmax = true;                   // else f = activation
  ScoreActivation activation = ScoreActivation::kSilu;
  // SiLU and GELU (tanh) in bf16 by tanh.approx, as in forward.h; gradients of f in bf16.
  bool fast = false;
  float scale = 1;  // of scores, above 0 for softmax (GDPA's alpha)
  float beta = 1;   // of f, 1 for softmax

  // Pairs (sequence, block of 128 keys) on the device, and their number: a sequence that
  // is_one_item(whole, ...) has one pair, block 0, which stands for all its keys; a longer one has a
  // pair for each block, in ascending order (others may lie between); one without keys has none.
  const int32_t *tiles = nullptr, *count = nullptr;  // as in AttentionOrder
  int32_t whole = 1024;                              // a multiple of 128

  void* workspace = nullptr;  // attention_backward_sm90_workspace bytes, aligned to 128
  int32_t ctas = 132;         // no more than there are multiprocessors
  void* stream = nullptr;
};

/// `whole` for head dimensions: large items wait for nobody, but their d_q must stay in L2. With 64
/// columns it is small, and a step so short that turns cost more.
inline int32_t attention_backward_sm90_whole(int64_t head_dim, int64_t value_dim) {
  return head_dim <= 64 && value_dim <= 64 ? 1024 : 256;
}

/// Why the backward does not take a problem that the forward takes; null where it does.
const char* attention_backward_sm90_refuses(const AttentionProblem& p);

/// Parts that add up to d_q of broadcast queries, at most B: p needs no pointers yet.
int64_t attention_backward_sm90_query_gradients(const AttentionSm90Backward& p);

int64_t attention_backward_sm90_workspace(const AttentionSm90Backward& p);

void attention_backward_sm90(const AttentionSm90Backward& p);

}  // namespace tautline::kernels
