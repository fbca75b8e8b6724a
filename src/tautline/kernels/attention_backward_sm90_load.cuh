// The producer warpgroup of attention_backward_sm90.cuh: a thread that loads, a thread that moves d_q.
#pragma once

#include "tautline/kernels/attention_backward_sm90_config.cuh"
#include "tautline/kernels/attention_backward_sm90_memory.cuh"
#include "tautline/kernels/attention_order.h"

namespace tautline::kernels::sm90 {

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
  Ring<C::kVStages> at_v(1);
  Ring<C::kQStages> at_q(1);
  Ring<C::kDoStages> at_do(1);
  const int items = *p.count * p.kv_heads, group = p.heads / p.kv_heads;
  for (int item = blockIdx.x; item < items;) {
    const int sequence = p.tiles[2 * (item / p.kv_heads)];
    const int chunk = p.tiles[2 * (item / p.kv_heads) + 1];
    KeyBlock b;
    b.q_start = p.seeds ? int64_t{sequence} * p.seeds : p.q_offsets[sequence];
    b.q_token = p.seeds ? 0 : b.q_start;
    b.k_start = p.k_offsets[sequence];
    b.nq = p.seeds ? p.seeds : static_cast<int>(p.q_offsets[sequence + 1] - b.q_start);
    b.nk = static_cast<int>(p.k_offsets[sequence + 1] - b.k_start);
    b.head = item % p.kv_heads;
    b.tile0 = static_cast<int>(b.q_start / C::kM) + sequence;
    b.chained = !is_one_item(p.whole, b.nq, b.nk);
    const int n_begin = b.chained ? chunk * C::kN : 0;
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
        const float* rows = p.rows + (int64_t{b.tile0 + w.tile} * p.heads + head) * 2 * C::kM;
        EmptyBarrier::wait(&s.empty_q[at_q.stage], at_q.phase);
        FullBarrier::arrive_and_expect_tx(&s.full_q[at_q.stage], C::kQBytes + C::kRowBytes);
        copy(tma_q.with(s.full_q[at_q.stage]),
             slice_q.partition_S(rows_of(mq, int(b.q_token) + m0, head, Int<C::kM>{})),
             slice_q.partition_D(sq(_, _, at_q.stage)));
        if constexpr (C::Scores::kRows)
          SM90_BULK_COPY_G2S::copy(rows, &s.full_q[at_q.stage], s.lse[at_q.stage], C::kRowBytes);
        at_q.advance();
        EmptyBarrier::wait(&s.empty_do[at_do.stage], at_do.phase);
        FullBarrier::arrive_and_expect_tx(&s.full_do[at_do.stage], C::kQBytes + C::kRowBytes);
        copy(tma_do.with(s.full_do[at_do.stage]),
             slice_do.partition_S(rows_of(mdo, int(b.q_start) + m0, head, Int<C::kM>{})),
             slice_do.partition_D(sdo(_, _, at_do.stage)));
        if constexpr (C::Scores::kRows)
          SM90_BULK_COPY_G2S::copy(rows + C::kM, &s.full_do[at_do.stage], s.delta[at_do.stage],
                                   C::kRowBytes);
        at_do.advance();
        if (t == 0) {
          EmptyBarrier::wait(&s.empty_v[at_v.stage], at_v.phase);
          FullBarrier::arrive_and_expect_tx(&s.full_v[at_v.stage], C::kKBytes);
          copy(tma_v.with(s.full_v[at_v.stage]),
               slice_v.partition_S(rows_of(mv, int(b.k_start) + b.n0, b.head, Int<C::kN>{})),
               slice_v.partition_D(sv(_, _, at_v.stage)));
          at_v.advance();
        }
      }
    }
    item = gridDim.x + atomicAdd(p.next, 1);  // late: others wait for what a CTA has taken
  }
  EmptyBarrier::wait(&s.empty_k[at_k.stage], at_k.phase);
  s.block[at_k.stage].head = -1;
  FullBarrier::arrive(&s.full_k[at_k.stage]);
}

/// What becomes of a step's part of d_q: it is the only one; or the first, put where the parts
/// gather; or added there; or the last, which takes the sum of the others.
enum class Part { kOnly, kFirst, kMiddle, kLast, kNone };
template <class C>
__device__ __forceinline__ Part part_of(const BackwardArguments& p, const KeyBlock& b, int m0,
                                        int rows) {
  if (!b.seen) return Part::kNone;
  const BlockRange range = blocks_seen(p.left, p.right, m0, m0 + rows, b.nq, b.nk);
  const int block = b.n0 / C::kN;
  if (block == range.last) return block == range.first ? Part::kOnly : Part::kLast;
  return block == range.first ? Part::kFirst : Part::kMiddle;
}

/// One thread moves parts of d_q between shared memory and where they gather. On a chained block it
/// waits until the blocks before have added theirs, and tells when this one has.
template <class C>
__device__ __forceinline__ void gather(typename C::Shared& s, const BackwardArguments& p) {
  constexpr int kBytes = C::kSlot * 4;
  const int group = p.heads / p.kv_heads;
  Ring<2> at_k(0);
  Ring<1> out(0), read(1);
  const float* latest = nullptr;  // where the last group went, which may be under way
  for (;; at_k.advance()) {
    FullBarrier::wait(&s.full_k[at_k.stage], at_k.phase);
    const KeyBlock& b = s.block[at_k.stage];
    if (b.head < 0) break;
    Walk<C> w(b);
    for (int t = 0; t < b.steps; ++t, w.advance(b)) {
      const int m0 = w.tile * C::kM, rows = w.rows(b);
      const Part part = part_of<C>(p, b, m0, rows);
      if (part == Part::kOnly || part == Part::kNone) continue;
      const int64_t tile = int64_t{b.tile0 + w.tile} * p.heads + b.head * group + w.member;
      const int place =
          b.n0 / C::kN - blocks_seen(p.left, p.right, m0, m0 + rows, b.nq, b.nk).first;
      float* slot =
          b.chained
              ? p.shared + tile * C::kSlot
              : p.own + (int64_t{blockIdx.x * group + w.member} * (p.whole / C::kM) + w.tile) *
                            C::kSlot;
      if (b.chained) await_turn(p.turns + tile, place);  // mostly while the consumers still work
      slot == latest ? bulk_wait<0>() : bulk_wait<1>();
      if (part == Part::kLast) {
        EmptyBarrier::wait(&s.dq_read, read.phase);
        read.advance();
        FullBarrier::arrive_and_expect_tx(&s.dq_in, kBytes);
        SM90_BULK_COPY_G2S::copy(slot, &s.dq_in, s.dq, kBytes);
      } else {
        EmptyBarrier::wait(&s.dq_out, out.phase);
        out.advance();
        part == Part::kFirst ? bulk_store(slot, s.dq, kBytes) : bulk_add(slot, s.dq, kBytes);
        latest = slot;
        bulk_wait_read();
        EmptyBarrier::arrive(&s.dq_sent);
        if (b.chained) {
          bulk_wait<0>();
          pass_turn(p.turns + tile, place + 1);
        }
      }
    }
    EmptyBarrier::arrive(&s.empty_k[at_k.stage]);
  }
}

}  // namespace tautline::kernels::sm90
