// Launch-time parts of backward.h's problem in the kernels' types.
#pragma once

#include <cstdint>

#include "tautline/kernels/attention_sm90/backward.h"
#include "tautline/kernels/attention_sm90/backward_workspace.h"

namespace tautline::kernels::sm90 {

struct BackwardArguments {
  const int64_t *q_offsets, *k_offsets;
  const int32_t *tiles, *count;
  int32_t heads, kv_heads, whole, left, right;  // bounds of the window; none: 2^30
  int32_t seeds, head_dim, value_dim;           // queries that stand in for every sequence, or 0
  float scale, beta;
  ScoreActivation activation;
  void* d_q;
  int64_t q_token, q_head;  // of d_q
  const void* terms;        // [tiles, H, M, kRowTerms], see backward_rows
  float *own, *shared;      // d_q: [ctas, H / G, whole / M] slots, [tiles, H] slots
  int32_t *turns, *next;
};

inline BackwardArguments arguments_of(const AttentionSm90Backward& p, const BackwardWorkspace& w) {
  const auto bound = [](int64_t x) {
    return static_cast<int32_t>(x < 0 || x > (1 << 30) ? 1 << 30 : x);
  };
  char* workspace = static_cast<char*>(p.workspace);
  BackwardArguments a{};
  a.q_offsets = p.q_offsets;
  a.k_offsets = p.k_offsets;
  a.tiles = p.tiles;
  a.count = p.count;
  a.seeds = p.q_offsets ? 0 : static_cast<int32_t>(p.max_q);
  a.head_dim = p.head_dim;
  a.value_dim = p.value_dim;
  a.heads = p.heads;
  a.kv_heads = p.kv_heads;
  a.whole = p.whole;
  a.left = bound(p.window.left);
  a.right = bound(p.window.right);
  a.scale = p.scale;
  a.beta = p.beta;
  a.activation = p.activation;
  a.d_q = p.d_q.data, a.q_token = p.d_q.token_stride, a.q_head = p.d_q.head_stride;
  a.next = reinterpret_cast<int32_t*>(workspace + w.next);
  a.turns = reinterpret_cast<int32_t*>(workspace + w.turns);
  a.terms = workspace + w.terms;
  a.own = reinterpret_cast<float*>(workspace + w.own);
  a.shared = reinterpret_cast<float*>(workspace + w.shared);
  return a;
}

}  // namespace tautline::kernels::sm90
