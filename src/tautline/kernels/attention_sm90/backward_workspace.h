// Where backward.cuh keeps things between its kernels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tautline/kernels/attention_order.h"
#include "tautline/kernels/attention_sm90/backward.h"
#include "tautline/kernels/attention_sm90/backward_terms.h"

namespace tautline::kernels::sm90 {

/// Columns of the kernel that takes the problem, and queries of its tiles.
inline int columns_of(const AttentionSm90Backward& p) {
  return p.head_dim <= 64 && p.value_dim <= 64 ? 64 : 128;
}
/// Whether its f is one of tanh.approx. Half's weights are finer than that: it stays exact.
inline bool is_fast(const AttentionSm90Backward& p) {
  return !p.softmax && p.fast && p.element == Element::kBFloat16 &&
         (p.activation == ScoreActivation::kSilu || p.activation == ScoreActivation::kGeluTanh);
}

/// Whether backward_few.cuh takes it: one tile of queries a sequence, whose keys are one item, and heads
/// with keys of their own; softmax and fast forms.
inline bool has_few_queries(const AttentionSm90Backward& p) {
  return (p.softmax || is_fast(p)) && p.max_q <= 64 && p.k_tokens > 0 && p.heads == p.kv_heads &&
         is_one_item(p.whole, p.max_q, p.max_k);
}
constexpr int kFewCtas = 2;  // of backward_few.cuh on a multiprocessor
/// CTAs that share a head there.
inline int64_t few_ranks(const AttentionSm90Backward& p) {
  return std::max<int64_t>(1, std::min<int64_t>(kFewCtas * p.ctas / p.heads, p.sequences));
}

inline int tile_of(const AttentionSm90Backward& p) {
  return columns_of(p) == 64 && !has_few_queries(p) ? 128 : 64;
}

inline int64_t query_tiles(const AttentionSm90Backward& p, int m) {
  return p.rows / m + p.sequences + 1;
}

/// Where things lie in the workspace, in bytes.
struct BackwardWorkspace {
  int64_t next, turns, turns_end, terms, own, shared, end;
};
inline BackwardWorkspace backward_workspace(const AttentionSm90Backward& p) {
  const int m = tile_of(p);
  const auto aligned = [](int64_t x) { return (x + 127) / 128 * 128; };
  const int64_t tiles = query_tiles(p, m) * p.heads, slot = int64_t{m} * columns_of(p) * 4;
  BackwardWorkspace w;
  w.next = 0;
  w.turns = 128;
  const bool chains = !is_one_item(p.whole, p.max_q, p.max_k);
  w.turns_end = w.turns + (chains ? tiles * 4 : 0);
  w.terms = aligned(w.turns_end);
  w.own = w.terms + tiles * m * kRowTerms * 2;
  const int64_t own = has_few_queries(p) ? 0 : p.heads / p.kv_heads * (p.whole / m);
  w.shared = w.own + p.ctas * own * slot;
  w.end = w.shared + (chains ? tiles * slot : 0);
  return w;
}

/// The pass before the kernel, softmax or not: fills `terms`, [tiles, H, M, kRowTerms] in 16 bits, where
/// softmax needs it, and d_q = 0 in tiles that see no key, unless it is summed over sequences.
void backward_rows(const AttentionSm90Backward& p, void* terms);

}  // namespace tautline::kernels::sm90
