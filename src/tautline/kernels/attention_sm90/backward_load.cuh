// Single threads of backward.cuh: one that loads queries, d_o and keys, two that see to turns of d_q.
#pragma once

#include "tautline/kernels/attention_order.h"
#include "tautline/kernels/attention_sm90/backward_config.cuh"
#include "tautline/kernels/attention_sm90/backward_memory.cuh"

namespace tautline::kernels::sm90 {

template <class C>
__device__ __forceinline__ Step step_of(const BackwardArguments& p, const KeyBlock& b,
                                        const Walk<C>& w, int t) {
  const int m0 = w.tile * C::kM, rows = w.rows(b), shift = b.nk - b.nq;
  const bool tail = b.n0 + C::kN > b.nk;
  const bool masked = tail || rows < C::kM || b.n0 + C::kN - 1 > m0 + shift + p.right ||
                      b.n0 < m0 + C::kM - 1 + shift - p.left;
  const int part = static_cast<int>(part_of<C>(p, b, m0, rows));
  Walk<C> next = w;
  next.advance(b);
  const bool next_takes =
      t + 1 < b.steps && part_of<C>(p, b, next.tile * C::kM, next.rows(b)) == Part::kLast;
  return {m0, rows,
          (t == 0 ? Step::kFirst : 0) | (t + 1 == b.steps ? Step::kLast : 0) |
              (next_takes ? Step::kNextTakes : 0) | (masked ? Step::kMasked : 0) |
              part * Step::kPart,
          w.member};
}

template <class C>
__device__ __forceinline__ void produce(typename C::Shared& s, const BackwardArguments& p,
                                        const BackwardMaps& maps) {
  Ring<2> at_k(1);
  Ring<C::kQStages> at_q(1);
  Ring<C::kDoStages> at(1);
  int n = 0;  // steps so far
  const int items = *p.count * p.kv_heads, group = p.heads / p.kv_heads;
  for (int item = blockIdx.x; item < items;) {
    const int sequence = p.tiles[2 * (item / p.kv_heads)];
    const int chunk = p.tiles[2 * (item / p.kv_heads) + 1];
    KeyBlock b;
    b.q_start = p.seeds ? int64_t{sequence} * p.seeds : p.q_offsets[sequence];
    const int64_t q_token = p.seeds ? 0 : b.q_start;
    b.k_start = p.k_offsets[sequence];
    b.nq = p.seeds ? p.seeds : static_cast<int>(p.q_offsets[sequence + 1] - b.q_start);
    b.nk = static_cast<int>(p.k_offsets[sequence + 1] - b.k_start);
    b.head = item % p.kv_heads;
    b.tile0 = static_cast<int>(b.q_start / C::kM) + sequence;
    b.chained = !is_one_item(p.whole, b.nq, b.nk);
    // Where a later block's queries start later, each starts with the first that see it: blocks come
    // to a tile of queries one after the other by themselves, the last one first.
    b.up = b.chained && p.right < b.nk && b.nk <= kMostUpwards;
    const int blocks = (b.nk + C::kN - 1) / C::kN;
    const int n_begin = b.chained ? (b.up ? blocks - 1 - chunk : chunk) * C::kN : 0;
    const int n_end = b.chained ? min(n_begin + C::kN, b.nk) : b.nk;
    for (b.n0 = n_begin; b.n0 < n_end; b.n0 += C::kN) {
      const int shift = b.nk - b.nq, n1 = min(b.n0 + C::kN, b.nk);
      const int first = max(0, b.n0 - shift - p.right), last = min(b.nq, n1 - shift + p.left);
      b.seen = first < last;
      b.q_first = b.seen ? first / C::kM : 0;
      b.q_last = b.seen ? (last + C::kM - 1) / C::kM : 1;
      b.steps = (b.q_last - b.q_first) * (b.seen ? group : 1);
      Walk<C> w(b);
      for (int t = 0; t < b.steps; ++t, w.advance(b)) {
        const int m0 = w.tile * C::kM, head = b.head * group + w.member;
        const void* terms = static_cast<const typename C::E*>(p.terms) +
                            (int64_t{b.tile0 + w.tile} * p.heads + head) * C::kM * kRowTerms;
        EmptyBarrier::wait(&s.empty_q[at_q.stage], at_q.phase);
        s.step[n++ % C::kSteps] = step_of<C>(p, b, w, t);
        load_rows<C::kM, C::kM, C::kD>(maps.q, &s.full_q[at_q.stage],
                                       s.q + at_q.stage * C::kM * C::kD, p.head_dim,
                                       int(q_token) + m0, w.rows(b), head);
        at_q.advance();
        if (t == 0) {  // behind the queries, which come from L2 and for which others wait sooner
          EmptyBarrier::wait(&s.empty_k[at_k.stage], at_k.phase);
          s.block[at_k.stage] = b;
          load_rows<C::kN, C::kN, C::kD>(maps.k, &s.full_k[at_k.stage],
                                         s.k + at_k.stage * C::kN * C::kD, p.head_dim,
                                         int(b.k_start) + b.n0, b.nk - b.n0, b.head);
          at_k.advance();
        }
        EmptyBarrier::wait(&s.empty_do[at.stage], at.phase);
        if constexpr (C::Scores::kRows) {
          FullBarrier::arrive_and_expect_tx(&s.full_terms[at.stage], C::kTermBytes);
          SM90_BULK_COPY_G2S::copy(w.rows(b) > 0 ? terms : hopper::nothing, &s.full_terms[at.stage],
                                   s.terms + at.stage * C::kM * kRowTerms, C::kTermBytes);
        }
        load_rows<C::kM, C::kM, C::kD>(maps.d_o, &s.full_do[at.stage],
                                       s.d_o + at.stage * C::kM * C::kD, p.value_dim,
                                       int(b.q_start) + m0, w.rows(b), head);
        at.advance();
      }
    }
    item = gridDim.x + atomicAdd(p.next, 1);  // late: others wait for what a CTA has taken
  }
  EmptyBarrier::wait(&s.empty_k[at_k.stage], at_k.phase);
  s.block[at_k.stage].head = -1;
  FullBarrier::arrive(&s.full_k[at_k.stage]);
  EmptyBarrier::wait(&s.empty_q[at_q.stage], at_q.phase);
  s.step[n % C::kSteps] = {0, C::kM, Step::kEnd, 0};
  FullBarrier::arrive(&s.full_q[at_q.stage]);
}

/// The parts of d_q that this CTA adds to what others add, step by step: two threads see to their
/// turns. One waits for each, the other passes it on. At most two parts are between them.
template <class C, class Do>
__device__ __forceinline__ void for_each_turn(typename C::Shared& s, const BackwardArguments& p,
                                              const Do& act) {
  const int group = p.heads / p.kv_heads;
  Ring<2> at_k(0), at(0);
  for (;; at_k.advance()) {
    FullBarrier::wait(&s.full_k[at_k.stage], at_k.phase);
    const KeyBlock& b = s.block[at_k.stage];
    if (b.head < 0) break;
    const int steps = b.chained ? b.steps : 0;
    Walk<C> w(b);
    for (int t = 0; t < steps; ++t, w.advance(b)) {
      const int m0 = w.tile * C::kM, rows = w.rows(b);
      const Part part = part_of<C>(p, b, m0, rows);
      if (part == Part::kOnly || part == Part::kNone) continue;
      const int64_t tile = int64_t{b.tile0 + w.tile} * p.heads + b.head * group + w.member;
      const int place = place_of<C>(b, blocks_seen(p.left, p.right, m0, m0 + rows, b.nq, b.nk));
      act(p.turns + tile, place, part, at);
      at.advance();
    }
    EmptyBarrier::arrive(&s.empty_k[at_k.stage]);
  }
}
template <class C>
__device__ __forceinline__ void await_turns(typename C::Shared& s, const BackwardArguments& p) {
  for_each_turn<C>(s, p, [&](int* turn, int place, Part, const Ring<2>& at) {
    EmptyBarrier::wait(&s.passed[at.stage], at.phase ^ 1);
    await_turn(turn, place);
    EmptyBarrier::arrive(&s.turn[at.stage]);
  });
}
template <class C>
__device__ __forceinline__ void pass_turns(typename C::Shared& s, const BackwardArguments& p) {
  for_each_turn<C>(s, p, [&](int* turn, int place, Part part, const Ring<2>& at) {
    EmptyBarrier::wait(&s.added[at.stage], at.phase);
    EmptyBarrier::arrive(&s.passed[at.stage]);
    if (part != Part::kLast) pass_turn(turn, place + 1);
  });
}

}  // namespace tautline::kernels::sm90
