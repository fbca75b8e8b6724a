// Single threads of backward.cuh: one that loads, two that see to turns of d_q.
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
              (tail ? Step::kTail : 0) | part * Step::kPart,
          w.member};
}

template <class C, class TmaQ, class TmaK>
__device__ __forceinline__ void produce(typename C::Shared& s, const BackwardArguments& p,
                                        const TmaQ& tma_q, const TmaQ& tma_do, const TmaK& tma_k,
                                        const TmaK& tma_v) {
  const auto mq = tma_q.get_tma_tensor(make_shape(int(p.q_tokens), Int<C::kD>{}, p.heads));
  const auto mdo = tma_do.get_tma_tensor(make_shape(int(p.q_rows), Int<C::kD>{}, p.heads));
  const auto mk = tma_k.get_tma_tensor(make_shape(int(p.k_tokens), Int<C::kD>{}, p.kv_heads));
  const auto mv = tma_v.get_tma_tensor(make_shape(int(p.k_tokens), Int<C::kD>{}, p.kv_heads));
  const Tensor sq = make_tensor(make_smem_ptr(s.q), typename C::LayoutQ{});
  const Tensor sdo = make_tensor(make_smem_ptr(s.d_o), typename C::LayoutDo{});
  const Tensor sk = make_tensor(make_smem_ptr(s.k), typename C::LayoutK{});
  const Tensor sv = make_tensor(make_smem_ptr(s.v), typename C::LayoutV{});
  const auto slice_q = tma_q.get_slice(_0{});
  const auto slice_do = tma_do.get_slice(_0{});
  const auto slice_k = tma_k.get_slice(_0{});
  const auto slice_v = tma_v.get_slice(_0{});
  const auto rows_of = [](const auto& m, int row, int head, auto rows) {
    return local_tile(domain_offset(make_coord(row, _0{}), m(_, _, head)),
                      Shape<decltype(rows), Int<C::kD>>{}, make_coord(_0{}, _0{}));
  };
  Ring<2> at_k(1);
  Ring<1> at_v(1);
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
      EmptyBarrier::wait(&s.empty_k[at_k.stage], at_k.phase);
      s.block[at_k.stage] = b;
      FullBarrier::arrive_and_expect_tx(&s.full_k[at_k.stage], C::kKBytes);
      copy(tma_k.with(s.full_k[at_k.stage]),
           slice_k.partition_S(rows_of(mk, int(b.k_start) + b.n0, b.head, Int<C::kN>{})),
           slice_k.partition_D(sk(_, _, at_k.stage)));
      at_k.advance();
      Walk<C> w(b);
      for (int t = 0; t < b.steps; ++t, w.advance(b)) {
        const int m0 = w.tile * C::kM, head = b.head * group + w.member;
        const auto* terms = static_cast<const typename C::E*>(p.terms) +
                            (int64_t{b.tile0 + w.tile} * p.heads + head) * C::kM * kRowTerms;
        EmptyBarrier::wait(&s.empty_q[at_q.stage], at_q.phase);
        s.step[n++ % C::kSteps] = step_of<C>(p, b, w, t);
        FullBarrier::arrive_and_expect_tx(&s.full_q[at_q.stage], C::kQBytes);
        copy(tma_q.with(s.full_q[at_q.stage]),
             slice_q.partition_S(rows_of(mq, int(q_token) + m0, head, Int<C::kM>{})),
             slice_q.partition_D(sq(_, _, at_q.stage)));
        at_q.advance();
        EmptyBarrier::wait(&s.empty_do[at.stage], at.phase);
        if constexpr (C::Scores::kRows) {
          FullBarrier::arrive_and_expect_tx(&s.full_terms[at.stage], C::kTermBytes);
          SM90_BULK_COPY_G2S::copy(terms, &s.full_terms[at.stage],
                                   s.terms + at.stage * C::kM * kRowTerms, C::kTermBytes);
        }
        FullBarrier::arrive_and_expect_tx(&s.full_do[at.stage], C::kQBytes);
        copy(tma_do.with(s.full_do[at.stage]),
             slice_do.partition_S(rows_of(mdo, int(b.q_start) + m0, head, Int<C::kM>{})),
             slice_do.partition_D(sdo(_, _, at.stage)));
        at.advance();
        if (t == 0) {
          EmptyBarrier::wait(&s.empty_v, at_v.phase);
          FullBarrier::arrive_and_expect_tx(&s.full_v, C::kKBytes);
          copy(tma_v.with(s.full_v),
               slice_v.partition_S(rows_of(mv, int(b.k_start) + b.n0, b.head, Int<C::kN>{})),
               slice_v.partition_D(sv(_, _, 0)));
          at_v.advance();
        }
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
