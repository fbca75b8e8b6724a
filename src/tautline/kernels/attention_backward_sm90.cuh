// The kernel of attention_backward_sm90.h. One producer warpgroup (TMA; the order of CTAs on long
// sequences), two consumer warpgroups of 64 keys each.
//
// A step is one tile of M queries against 128 keys; scores are transposed, keys by queries, so that
// P^T and dS^T are register operands of the products for d_v and d_k:
//   S^T = K Q^T    dP^T = V dO^T    dV += P^T dO    dQ = dS K (dS through shared memory)
//   dK += dS^T Q
// The next step's S^T is issued behind this step's dQ and dK, over the ends of key blocks and items
// too, so the tensor cores have work while the consumers exponentiate, add d_q and store d_k, d_v.
//
// M queries of a tile, D head dimension, E element type.
#pragma once

#include <cstdint>
#include <cute/tensor.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cutlass/numeric_types.h>

#include "tautline/kernels/attention_backward_sm90.h"
#include "tautline/kernels/attention_backward_sm90_rows.cuh"
#include "tautline/kernels/attention_backward_sm90_workspace.h"
#include "tautline/kernels/launch.cuh"

namespace tautline::kernels::sm90 {

using namespace cute;

/// What a key block is, from the producer to everyone else.
struct KeyBlock {
  int64_t q_start, k_start;  // first query and key token of the sequence
  int32_t nq, nk, n0;        // lengths, first key of the block
  int32_t head;              // of keys; negative: no more blocks
  int32_t q_first, q_last;   // tiles of queries [first, last), walked downwards
  int32_t steps;             // tiles times query heads
  int32_t tile0;             // number of the sequence's first tile of queries among all
  int32_t seen;              // 0: no query sees these keys; the one step is a blank
  int32_t chained;           // other CTAs add to the same d_q
};

template <class E_, int kD_, int kM_, class Scores_>
struct BackwardConfig {
  using E = E_;
  using Scores = Scores_;
  static constexpr int kD = kD_, kM = kM_, kN = 128, kStages = 2, kThreads = 384;
  using Atom = GMMA::Layout_K_SW128_Atom<E>;
  using LayoutQ = decltype(tile_to_shape(Atom{}, Shape<Int<kM>, Int<kD>, Int<kStages>>{}));
  using LayoutQt =
      decltype(composition(LayoutQ{}, make_layout(Shape<Int<kD>, Int<kM>, Int<kStages>>{},
                                                  make_stride(Int<kM>{}, _1{}, Int<kM * kD>{}))));
  using LayoutK = decltype(tile_to_shape(Atom{}, Shape<Int<kN>, Int<kD>, _2>{}));
  using LayoutKt =
      decltype(composition(LayoutK{}, make_layout(Shape<Int<kD>, Int<kN>, _2>{},
                                                  make_stride(Int<kN>{}, _1{}, Int<kN * kD>{}))));
  using LayoutDs =
      decltype(tile_to_shape(GMMA::Layout_MN_SW128_Atom<E>{}, Shape<Int<kM>, Int<kN>, _2>{}));
  using LayoutDst =
      decltype(composition(LayoutDs{}, make_layout(Shape<Int<kN>, Int<kM>, _2>{},
                                                   make_stride(Int<kM>{}, _1{}, Int<kM * kN>{}))));
  using TwoRows = Layout<Shape<_2, _1, _1>>;
  using MmaS = decltype(make_tiled_mma(
      GMMA::ss_op_selector<E, E, float, Shape<Int<kN>, Int<kM>, Int<kD>>>(), TwoRows{}));
  using MmaKv =
      decltype(make_tiled_mma(GMMA::rs_op_selector<E, E, float, Shape<Int<kN>, Int<kD>, Int<kM>>,
                                                   GMMA::Major::K, GMMA::Major::MN>(),
                              TwoRows{}));
  // d_q: the warpgroups share the rows of 128 queries, or the columns of 64.
  static constexpr bool kSplitColumns = kM == 64;
  static constexpr int kQColumns = kSplitColumns ? kD / 2 : kD;
  using MmaQ = decltype(make_tiled_mma(
      GMMA::ss_op_selector<E, E, float, Shape<_64, Int<kQColumns>, Int<kN>>, GMMA::Major::MN,
                           GMMA::Major::MN>(),
      Layout<Shape<Int<kSplitColumns ? 1 : 2>, Int<kSplitColumns ? 2 : 1>, _1>>{}));
  static constexpr uint32_t kQBytes = kM * kD * 2, kKBytes = kN * kD * 2, kRowBytes = kM * 4;
  static constexpr int kSlot = kM * kD;  // floats of d_q of a tile

  struct alignas(1024) Shared {
    alignas(1024) E q[kStages * kM * kD];
    alignas(1024) E d_o[kStages * kM * kD];
    alignas(1024) E k[2 * kN * kD];
    alignas(1024) E v[2 * kN * kD];
    alignas(1024) E ds[2 * kM * kN];
    alignas(128) float lse[kStages][kM];
    alignas(128) float delta[kStages][kM];
    KeyBlock block[2];
    uint64_t full_k[2], full_v[2], empty_kv[2];
    uint64_t full_q[kStages], empty_q[kStages], full_do[kStages], empty_do[kStages];
    uint64_t turn[2], added[2], noted[2];
  };
};

using FullBarrier = cutlass::arch::ClusterTransactionBarrier;
using EmptyBarrier = cutlass::arch::ClusterBarrier;

/// Launch-time parts of the problem in the kernel's types.
struct BackwardArguments {
  const int64_t *q_offsets, *k_offsets;
  const int32_t *tiles, *count;
  int64_t q_tokens, k_tokens;
  int32_t heads, kv_heads, whole, left, right;  // bounds of the window; none: 2^30
  float scale, beta;
  ScoreActivation activation;
  void *d_q, *d_k, *d_v;
  int64_t q_token, q_head, k_token, k_head, v_token, v_head;  // of d_q, d_k, d_v
  const float* rows;                                          // [tiles, H, 2, M]: lse, delta
  float *own, *shared;  // d_q: [ctas, H / G, whole / M] slots, [tiles, H] slots
  int32_t *turns, *next;
};

/// Key blocks [first, last] that queries [m0, m1) of a sequence see; last < first: none.
struct BlockRange {
  int first, last;
};
__device__ __forceinline__ BlockRange blocks_seen(int left, int right, int m0, int m1, int nq,
                                                  int nk) {
  const int shift = nk - nq, first = m0 + shift - left, last = m1 + shift + right;
  return {(first > 0 ? first : 0) / 128, ((last < nk ? last : nk) + 127) / 128 - 1};
}

template <bool kFirst = false, class Mma, class A, class B, class Acc>
__device__ __forceinline__ void issue(Mma& mma, const A& a, const B& b, Acc& acc,
                                      GMMA::ScaleOut first = GMMA::ScaleOut::Zero) {
  warpgroup_fence_operand(acc);
  warpgroup_arrive();
  mma.accumulate_ = first;
#pragma unroll
  for (int k = 0; k < size<2>(a); ++k) {
    cute::gemm(mma, a(_, _, k), b(_, _, k), acc);
    mma.accumulate_ = GMMA::ScaleOut::One;
  }
  warpgroup_commit_batch();
}

/// (2, 2, N / 8) a thread of an accumulator as the A operand of the next product: the same order.
template <class Layout>
__device__ __forceinline__ auto as_operand(Layout l) {
  const auto inner = logical_divide(get<0>(l), Shape<Underscore, Underscore, _2>{});
  return make_layout(make_layout(get<0>(inner), get<1>(inner), get<2, 0>(inner)), get<1>(l),
                     make_layout(get<2, 1>(inner), get<2>(l)));
}

/// Rows [rows, R) of a swizzled [R, D] tile become 0. By 128 threads; both warpgroups do it, each
/// before its own products, so that neither waits for the other.
template <int R, int D, class E>
__device__ __forceinline__ void clear_tail(E* tile, int rows, int thread, int group) {
#pragma unroll
  for (int c = 0; c < D / 64; ++c) {
    uint4* column = reinterpret_cast<uint4*>(tile + c * R * 64);
    for (int i = rows * 8 + thread; i < R * 8; i += 128) column[i] = uint4{0, 0, 0, 0};
  }
  cutlass::arch::fence_view_async_shared();
  cutlass::arch::NamedBarrier::sync(128, 2 + group);
}

/// The steps of a key block: tiles of queries downwards, for each query head of the group.
template <class C>
struct Walk {
  int tile, member = 0;  // member of the group of query heads
  __device__ __forceinline__ explicit Walk(const KeyBlock& b) : tile(b.q_last - 1) {}
  __device__ __forceinline__ void advance(const KeyBlock& b) {
    if (--tile < b.q_first) tile = b.q_last - 1, ++member;
  }
  __device__ __forceinline__ int rows(const KeyBlock& b) const {
    return b.seen ? min(C::kM, b.nq - tile * C::kM) : 0;
  }
};

template <class C, class TmaQ, class TmaK>
__device__ __forceinline__ void produce(typename C::Shared& s, const BackwardArguments& p,
                                        const TmaQ& tma_q, const TmaQ& tma_do, const TmaK& tma_k,
                                        const TmaK& tma_v) {
  const auto mq = tma_q.get_tma_tensor(make_shape(int(p.q_tokens), Int<C::kD>{}, p.heads));
  const auto mdo = tma_do.get_tma_tensor(make_shape(int(p.q_tokens), Int<C::kD>{}, p.heads));
  const auto mk = tma_k.get_tma_tensor(make_shape(int(p.k_tokens), Int<C::kD>{}, p.kv_heads));
  const auto mv = tma_v.get_tma_tensor(make_shape(int(p.k_tokens), Int<C::kD>{}, p.kv_heads));
  const Tensor sq = make_tensor(make_smem_ptr(s.q), typename C::LayoutQ{});
  const Tensor sdo = make_tensor(make_smem_ptr(s.d_o), typename C::LayoutQ{});
  const Tensor sk = make_tensor(make_smem_ptr(s.k), typename C::LayoutK{});
  const Tensor sv = make_tensor(make_smem_ptr(s.v), typename C::LayoutK{});
  const auto slice_q = tma_q.get_slice(_0{});
  const auto slice_do = tma_do.get_slice(_0{});
  const auto slice_k = tma_k.get_slice(_0{});
  const auto slice_v = tma_v.get_slice(_0{});
  const auto rows_of = [](const auto& m, int row, int head, auto rows) {
    return local_tile(domain_offset(make_coord(row, _0{}), m(_, _, head)),
                      Shape<decltype(rows), Int<C::kD>>{}, make_coord(_0{}, _0{}));
  };
  int kv = 0, stage = 0;
  uint32_t kv_phase = 1, phase = 1;
  const int items = *p.count * p.kv_heads, group = p.heads / p.kv_heads;
  for (int item = blockIdx.x; item < items;) {
    const int sequence = p.tiles[2 * (item / p.kv_heads)];
    const int chunk = p.tiles[2 * (item / p.kv_heads) + 1];
    KeyBlock b;
    b.q_start = p.q_offsets[sequence];
    b.k_start = p.k_offsets[sequence];
    b.nq = static_cast<int>(p.q_offsets[sequence + 1] - b.q_start);
    b.nk = static_cast<int>(p.k_offsets[sequence + 1] - b.k_start);
    b.head = item % p.kv_heads;
    b.tile0 = static_cast<int>(b.q_start / C::kM) + sequence;
    b.chained = b.nq > p.whole || b.nk > p.whole;
    const int n_begin = b.chained ? chunk * C::kN : 0;
    const int n_end = b.chained ? min(n_begin + C::kN, b.nk) : b.nk;
    for (b.n0 = n_begin; b.n0 < n_end; b.n0 += C::kN) {
      const int shift = b.nk - b.nq, n1 = min(b.n0 + C::kN, b.nk);
      const int first = max(0, b.n0 - shift - p.right), last = min(b.nq, n1 - shift + p.left);
      b.seen = first < last;
      b.q_first = b.seen ? first / C::kM : 0;
      b.q_last = b.seen ? (last + C::kM - 1) / C::kM : 1;
      b.steps = (b.q_last - b.q_first) * (b.seen ? group : 1);
      EmptyBarrier::wait(&s.empty_kv[kv], kv_phase);
      s.block[kv] = b;
      FullBarrier::arrive_and_expect_tx(&s.full_k[kv], C::kKBytes);
      copy(tma_k.with(s.full_k[kv]),
           slice_k.partition_S(rows_of(mk, int(b.k_start) + b.n0, b.head, Int<C::kN>{})),
           slice_k.partition_D(sk(_, _, kv)));
      Walk<C> w(b);
      for (int t = 0; t < b.steps; ++t, w.advance(b)) {
        const int row = int(b.q_start) + w.tile * C::kM, head = b.head * group + w.member;
        const float* rows = p.rows + (int64_t{b.tile0 + w.tile} * p.heads + head) * 2 * C::kM;
        EmptyBarrier::wait(&s.empty_q[stage], phase);
        FullBarrier::arrive_and_expect_tx(&s.full_q[stage],
                                          C::kQBytes + (C::Scores::kRows ? C::kRowBytes : 0));
        copy(tma_q.with(s.full_q[stage]), slice_q.partition_S(rows_of(mq, row, head, Int<C::kM>{})),
             slice_q.partition_D(sq(_, _, stage)));
        if constexpr (C::Scores::kRows)
          SM90_BULK_COPY_G2S::copy(rows, &s.full_q[stage], s.lse[stage], C::kRowBytes);
        if (t == 0) {
          FullBarrier::arrive_and_expect_tx(&s.full_v[kv], C::kKBytes);
          copy(tma_v.with(s.full_v[kv]),
               slice_v.partition_S(rows_of(mv, int(b.k_start) + b.n0, b.head, Int<C::kN>{})),
               slice_v.partition_D(sv(_, _, kv)));
        }
        EmptyBarrier::wait(&s.empty_do[stage], phase);
        FullBarrier::arrive_and_expect_tx(&s.full_do[stage],
                                          C::kQBytes + (C::Scores::kRows ? C::kRowBytes : 0));
        copy(tma_do.with(s.full_do[stage]),
             slice_do.partition_S(rows_of(mdo, row, head, Int<C::kM>{})),
             slice_do.partition_D(sdo(_, _, stage)));
        if constexpr (C::Scores::kRows)
          SM90_BULK_COPY_G2S::copy(rows + C::kM, &s.full_do[stage], s.delta[stage], C::kRowBytes);
        if (++stage == C::kStages) stage = 0, phase ^= 1;
      }
      if (++kv == 2) kv = 0, kv_phase ^= 1;
    }
    item = gridDim.x + atomicAdd(p.next, 1);  // late: others wait for what a CTA has taken
  }
  EmptyBarrier::wait(&s.empty_kv[kv], kv_phase);
  s.block[kv].head = -1;
  FullBarrier::arrive(&s.full_k[kv]);
}

/// Steps of chained blocks: one warp tells the consumers that the blocks before have added to a
/// tile's d_q, another tells the blocks behind that this one has.
template <class C, bool kWait>
__device__ __forceinline__ void take_turns(typename C::Shared& s, const BackwardArguments& p) {
  const int group = p.heads / p.kv_heads;
  int kv = 0, count = 0;
  uint32_t kv_phase = 0;
  for (;;) {
    FullBarrier::wait(&s.full_k[kv], kv_phase);
    const KeyBlock& b = s.block[kv];
    if (b.head < 0) break;
    if (b.chained && b.seen) {
      Walk<C> w(b);
      for (int t = 0; t < b.steps; ++t, ++count, w.advance(b)) {
        const int m0 = w.tile * C::kM;
        const int place =
            b.n0 / C::kN - blocks_seen(p.left, p.right, m0, m0 + w.rows(b), b.nq, b.nk).first;
        int* turn = p.turns + int64_t{b.tile0 + w.tile} * p.heads + b.head * group + w.member;
        if constexpr (kWait) {
          if (count >= 2) EmptyBarrier::wait(&s.noted[count & 1], ((count >> 1) - 1) & 1);
          int now;
          do {
            asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
          } while (now != place);
          EmptyBarrier::arrive(&s.turn[count & 1]);
        } else {
          EmptyBarrier::wait(&s.added[count & 1], (count >> 1) & 1);
          EmptyBarrier::arrive(&s.noted[count & 1]);
          __threadfence();
          asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turn), "r"(place + 1)
                       : "memory");
        }
      }
    }
    EmptyBarrier::arrive(&s.empty_kv[kv]);
    if (++kv == 2) kv = 0, kv_phase ^= 1;
  }
}

template <class C>
__device__ __forceinline__ void consume(typename C::Shared& s, const BackwardArguments& p) {
  using E = typename C::E;
  constexpr int kM = C::kM, kN = C::kN, kD = C::kD;
  const int thread = threadIdx.x - 128, group = cutlass::canonical_warp_group_idx() - 1;
  const int in_group = thread & 127, lane = thread & 31, row = in_group / 32 * 16 + lane / 4;
  typename C::MmaS mma_s;
  typename C::MmaKv mma_kv;
  typename C::MmaQ mma_q;
  const auto my_s = mma_s.get_thread_slice(group * 128);
  const auto my_kv = mma_kv.get_thread_slice(group * 128);
  const auto my_q = mma_q.get_thread_slice(group * 128);
  const Tensor fk = my_s.make_fragment_A(
      my_s.partition_A(make_tensor(make_smem_ptr(s.k), typename C::LayoutK{})));
  const Tensor fv = my_s.make_fragment_A(
      my_s.partition_A(make_tensor(make_smem_ptr(s.v), typename C::LayoutK{})));
  const Tensor fq = my_s.make_fragment_B(
      my_s.partition_B(make_tensor(make_smem_ptr(s.q), typename C::LayoutQ{})));
  const Tensor fdo = my_s.make_fragment_B(
      my_s.partition_B(make_tensor(make_smem_ptr(s.d_o), typename C::LayoutQ{})));
  const Tensor fqt = my_kv.make_fragment_B(
      my_kv.partition_B(make_tensor(make_smem_ptr(s.q), typename C::LayoutQt{})));
  const Tensor fdot = my_kv.make_fragment_B(
      my_kv.partition_B(make_tensor(make_smem_ptr(s.d_o), typename C::LayoutQt{})));
  const Tensor fds = my_q.make_fragment_A(
      my_q.partition_A(make_tensor(make_smem_ptr(s.ds), typename C::LayoutDs{})));
  const Tensor fkt = my_q.make_fragment_B(
      my_q.partition_B(make_tensor(make_smem_ptr(s.k), typename C::LayoutKt{})));
  Tensor scores = partition_fragment_C(mma_s, Shape<Int<kN>, Int<kM>>{});
  Tensor dp = partition_fragment_C(mma_s, Shape<Int<kN>, Int<kM>>{});
  Tensor dk = partition_fragment_C(mma_kv, Shape<Int<kN>, Int<kD>>{});
  Tensor dv = partition_fragment_C(mma_kv, Shape<Int<kN>, Int<kD>>{});
  Tensor dq = partition_fragment_C(mma_q, Shape<Int<kM>, Int<kD>>{});
  Tensor p16 = make_tensor<E>(as_operand(scores.layout()));
  Tensor ds16 = make_tensor<E>(as_operand(scores.layout()));
  auto* p_words = reinterpret_cast<uint32_t*>(raw_pointer_cast(p16.data()));
  auto* ds_words = reinterpret_cast<uint32_t*>(raw_pointer_cast(ds16.data()));
  uint32_t* gates = ds_words;  // pairs of f', where it is not P itself, until they are dS
  const auto to_shared = make_tiled_copy_C(Copy_Atom<SM90_U32x4_STSM_N, E>{}, mma_s);
  const auto my_copy = to_shared.get_thread_slice(thread);
  const Tensor ds_from = my_copy.retile_S(make_tensor(ds16.data(), scores.layout()));
  const Tensor ds_to =
      my_copy.partition_D(make_tensor(make_smem_ptr(s.ds), typename C::LayoutDst{}));
  const bool leader = lane == 0;
  const typename C::Scores policy(p.scale, p.activation);

  int kv = 0, stage = 0, buffer = 0, chained = 0;
  uint32_t kv_phase = 0, phase = 0;
  // A step's queries have come, and at its first step a block's keys.
  const auto await_queries = [&](const KeyBlock& b, E* keys, bool first, int rows, int stage,
                                 uint32_t phase) {
    FullBarrier::wait(&s.full_q[stage], phase);
    if (first && b.n0 + kN > b.nk) clear_tail<kN, kD>(keys, b.nk - b.n0, in_group, group);
    if (rows < kM) clear_tail<kM, kD>(s.q + stage * kM * kD, rows, in_group, group);
  };
  // d_k and d_v of a block leave, under the first products of the next.
  const auto finish = [&](int kv) {
    const KeyBlock& b = s.block[kv];
    const int keys = b.nk - b.n0, head = b.head;
    const int64_t token = b.k_start + b.n0;
    store_rows<kD / 8>(dv.data(), static_cast<E*>(p.d_v) + token * p.v_token + head * p.v_head,
                       p.v_token, 64 * group + row, keys, p.beta);
    store_rows<kD / 8>(dk.data(), static_cast<E*>(p.d_k) + token * p.k_token + head * p.k_head,
                       p.k_token, 64 * group + row, keys, p.scale * p.beta);
    __syncwarp();
    if (leader) EmptyBarrier::arrive(&s.empty_kv[kv]);
  };

  FullBarrier::wait(&s.full_k[0], 0);
  if (s.block[0].head < 0) return;
  clear(dk);
  clear(dv);
  Walk<C> w(s.block[0]);
  await_queries(s.block[0], s.k, true, w.rows(s.block[0]), 0, 0);
  issue(mma_s, fk(_, _, _, 0), fq(_, _, _, 0), scores);
  warpgroup_wait<0>();  // nothing in flight where the loop begins: ptxas would serialise all of it
  warpgroup_fence_operand(scores);
  const int members = p.heads / p.kv_heads;
  bool started = false;
  for (;;) {
    const KeyBlock& b = s.block[kv];
    const int steps = b.steps;
    FullBarrier::wait(&s.full_v[kv], kv_phase);
    int t = 0;
    do {
      const int m0 = w.tile * kM, rows = w.rows(b);
      FullBarrier::wait(&s.full_do[stage], phase);
      if (rows < kM) clear_tail<kM, kD>(s.d_o + stage * kM * kD, rows, in_group, group);
      if (t == 0 && b.n0 + kN > b.nk)
        clear_tail<kN, kD>(s.v + kv * kN * kD, b.nk - b.n0, in_group, group);
      warpgroup_wait<0>();  // scores; the last step's d_k
      warpgroup_fence_operand(scores);
      warpgroup_fence_operand(dk);
      if (leader && started) EmptyBarrier::arrive(&s.empty_q[stage ^ 1]);
      issue(mma_s, fv(_, _, _, kv), fdo(_, _, _, stage), dp);
      if (t == 0 && started) finish(kv ^ 1);
      started = true;

      policy.template weights<kM>(scores.data(), p_words, gates, s.lse[stage], lane);
      const int shift = b.nk - b.nq;
      if (rows < kM || b.n0 + kN > b.nk || b.n0 + kN - 1 > m0 + shift + p.right ||
          b.n0 < m0 + kM - 1 + shift - p.left) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int key = b.n0 + 64 * group + row + 8 * r;
          const int first = max(-1, key - shift - p.right - m0) - 2 * (lane & 3);
          const int last =
              (key < b.nk ? min(rows, key - shift + p.left + 1 - m0) : -1) - 2 * (lane & 3);
#pragma unroll
          for (int j = 0; j < kM / 8; ++j) {
            const bool low = 8 * j >= first && 8 * j < last;
            const bool high = 8 * j + 1 >= first && 8 * j + 1 < last;
            const uint32_t keep = (low ? 0x0000ffffu : 0u) | (high ? 0xffff0000u : 0u);
            p_words[2 * j + r] &= keep;
            if constexpr (C::Scores::kGates) gates[2 * j + r] &= keep;
          }
        }
      }
      issue(mma_kv, p16, fdot(_, _, _, stage), dv,
            t == 0 ? GMMA::ScaleOut::Zero : GMMA::ScaleOut::One);
      warpgroup_wait<1>();
      warpgroup_fence_operand(dp);
      policy.template gradients<kM>(C::Scores::kGates ? gates : p_words, dp.data(), ds_words,
                                    s.delta[stage], lane);
      if (!b.seen)  // its deltas are anything
#pragma unroll
        for (int i = 0; i < kM / 4; ++i) ds_words[i] = 0;
      copy(to_shared, ds_from, ds_to(_, _, _, buffer));
      cutlass::arch::fence_view_async_shared();
      cutlass::arch::NamedBarrier::sync(256, 1);

      const int next_stage = stage ^ 1;
      const uint32_t next_phase = phase ^ (next_stage == 0);
      const bool last = t + 1 == steps;
      const int next_kv = last ? kv ^ 1 : kv;
      if (last) FullBarrier::wait(&s.full_k[next_kv], kv_phase ^ (next_kv == 0));
      Walk<C> next = w;
      const KeyBlock& next_b = s.block[next_kv];
      if (next_b.head >= 0) {
        last ? void(next = Walk<C>(next_b)) : next.advance(b);
        await_queries(next_b, s.k + next_kv * kN * kD, last, next.rows(next_b), next_stage,
                      next_phase);
      }
      // In one piece, without branches: ptxas loses count of the products in flight otherwise. After
      // the last block the scores are of whatever lies there.
      issue(mma_q, fds(_, _, _, buffer), fkt(_, _, _, kv), dq);
      issue(mma_kv, ds16, fqt(_, _, _, stage), dk,
            t == 0 ? GMMA::ScaleOut::Zero : GMMA::ScaleOut::One);
      warpgroup_wait<2>();  // d_v: gives back the registers of P
      warpgroup_fence_operand(dv);
      issue(mma_s, fk(_, _, _, next_kv), fq(_, _, _, next_stage), scores);
      warpgroup_wait<2>();
      warpgroup_fence_operand(dq);
      if (leader) EmptyBarrier::arrive(&s.empty_do[stage]);

      // d_q: thread t owns the float4 [i][t] of a slot.
      if (b.seen) {
        const int key_block = b.n0 / kN, head = b.head * members + w.member;
        const BlockRange range = blocks_seen(p.left, p.right, m0, m0 + rows, b.nq, b.nk);
        float* slot =
            b.chained
                ? p.shared + (int64_t{b.tile0 + w.tile} * p.heads + head) * C::kSlot
                : p.own + (int64_t{blockIdx.x * members + w.member} * (p.whole / kM) + w.tile) *
                              C::kSlot;
        float4* mine = reinterpret_cast<float4*>(slot) + thread;
        if (b.chained) EmptyBarrier::wait(&s.turn[chained & 1], (chained >> 1) & 1);
        if (key_block == range.last) {
          if (key_block != range.first) {
#pragma unroll
            for (int i = 0; i < size(dq) / 4; ++i) {
              const float4 x = __ldcg(mine + i * 256);
              dq(4 * i) += x.x, dq(4 * i + 1) += x.y, dq(4 * i + 2) += x.z, dq(4 * i + 3) += x.w;
            }
          }
          const int row0 = row + (C::kSplitColumns ? 0 : 64 * group);
          E* to = static_cast<E*>(p.d_q) + (b.q_start + m0) * p.q_token + head * p.q_head +
                  (C::kSplitColumns ? group * (kD / 2) : 0);
          store_rows<C::kQColumns / 8>(dq.data(), to, p.q_token, row0, rows, p.scale * p.beta);
        } else if (key_block == range.first) {
#pragma unroll
          for (int i = 0; i < size(dq) / 4; ++i)
            __stcg(mine + i * 256, float4{dq(4 * i), dq(4 * i + 1), dq(4 * i + 2), dq(4 * i + 3)});
        } else {
#pragma unroll
          for (int i = 0; i < size(dq) / 4; ++i)
            add4(mine + i * 256, dq(4 * i), dq(4 * i + 1), dq(4 * i + 2), dq(4 * i + 3));
        }
        if (b.chained) {
          __syncwarp();
          if (leader) EmptyBarrier::arrive(&s.added[chained & 1]);
          ++chained;
        }
      }
      w = next;
      stage = next_stage;
      phase = next_phase;
      buffer ^= 1;
    } while (++t < steps);
    kv ^= 1;
    kv_phase ^= kv == 0;
    if (s.block[kv].head < 0) break;
  }
  warpgroup_wait<0>();
  warpgroup_fence_operand(dk);
  warpgroup_fence_operand(scores);
  if (leader) EmptyBarrier::arrive(&s.empty_q[stage ^ 1]);
  finish(kv ^ 1);
}

template <class C, class TmaQ, class TmaK>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_backward(const __grid_constant__ BackwardArguments p,
                       const __grid_constant__ TmaQ tma_q, const __grid_constant__ TmaQ tma_do,
                       const __grid_constant__ TmaK tma_k, const __grid_constant__ TmaK tma_v) {
  extern __shared__ char raw[];
  auto& s = *reinterpret_cast<typename C::Shared*>(raw);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      FullBarrier::init(&s.full_k[i], 1);
      FullBarrier::init(&s.full_v[i], 1);
      EmptyBarrier::init(&s.empty_kv[i], 8 + 2);
      EmptyBarrier::init(&s.turn[i], 1);
      EmptyBarrier::init(&s.added[i], 8);
      EmptyBarrier::init(&s.noted[i], 1);
    }
    for (int i = 0; i < C::kStages; ++i) {
      FullBarrier::init(&s.full_q[i], 1);
      FullBarrier::init(&s.full_do[i], 1);
      EmptyBarrier::init(&s.empty_q[i], 8);
      EmptyBarrier::init(&s.empty_do[i], 8);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  if (cutlass::canonical_warp_group_idx() == 0) {
    cutlass::arch::warpgroup_reg_dealloc<24>();
    const int warp = cutlass::canonical_warp_idx_sync();
    if (warp < 3 && cute::elect_one_sync()) {
      if (warp == 0) produce<C>(s, p, tma_q, tma_do, tma_k, tma_v);
      if (warp == 1) take_turns<C, true>(s, p);
      if (warp == 2) take_turns<C, false>(s, p);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<240>();
    consume<C>(s, p);
  }
}

template <class C>
void launch_backward(const AttentionSm90Backward& p) {
  using E = typename C::E;
  const cudaStream_t stream = stream_of(p.stream);
  const BackwardWorkspace w = backward_workspace(p);
  char* workspace = static_cast<char*>(p.workspace);
  const auto bound = [](int64_t x) {
    return static_cast<int32_t>(x < 0 || x > (1 << 30) ? 1 << 30 : x);
  };
  BackwardArguments a{};
  a.q_offsets = p.q_offsets;
  a.k_offsets = p.k_offsets;
  a.tiles = p.tiles;
  a.count = p.count;
  a.q_tokens = p.rows;
  a.k_tokens = p.k_tokens;
  a.heads = p.heads;
  a.kv_heads = p.kv_heads;
  a.whole = p.whole;
  a.left = bound(p.window.left);
  a.right = bound(p.window.right);
  a.scale = p.scale;
  a.beta = p.beta;
  a.activation = p.activation;
  a.d_q = p.d_q.data, a.q_token = p.d_q.token_stride, a.q_head = p.d_q.head_stride;
  a.d_k = p.d_k.data, a.k_token = p.d_k.token_stride, a.k_head = p.d_k.head_stride;
  a.d_v = p.d_v.data, a.v_token = p.d_v.token_stride, a.v_head = p.d_v.head_stride;
  a.next = reinterpret_cast<int32_t*>(workspace + w.next);
  a.turns = reinterpret_cast<int32_t*>(workspace + w.turns);
  a.rows = reinterpret_cast<float*>(workspace + w.rows);
  a.own = reinterpret_cast<float*>(workspace + w.own);
  a.shared = reinterpret_cast<float*>(workspace + w.shared);
  check_cuda(cudaMemsetAsync(workspace, 0, w.turns_end, stream), "cudaMemsetAsync");
  if (p.rows > 0) {
    backward_rows<E, C::kD, C::kM, C::Scores::kRows>
        <<<static_cast<unsigned>(query_tiles(p, C::kM)), 256, 0, stream>>>(
            p, reinterpret_cast<float*>(workspace + w.rows));
    check_launch("attention backward, rows");
  }
  if (p.k_tokens == 0) return;

  const auto view = [](const HeadsView& x, int64_t tokens, int64_t heads) {
    return make_tensor(make_gmem_ptr(static_cast<const E*>(x.data)),
                       make_shape(int(tokens), Int<C::kD>{}, int(heads)),
                       make_stride(x.token_stride, _1{}, x.head_stride));
  };
  const auto query_map = [&](const HeadsView& x) {
    return make_tma_copy(SM90_TMA_LOAD{}, view(x, p.rows > 0 ? p.rows : 1, p.heads),
                         take<0, 2>(typename C::LayoutQ{}), Shape<Int<C::kM>, Int<C::kD>>{}, _1{});
  };
  const auto key_map = [&](const HeadsView& x) {
    return make_tma_copy(SM90_TMA_LOAD{}, view(x, p.k_tokens, p.kv_heads),
                         take<0, 2>(typename C::LayoutK{}), Shape<Int<C::kN>, Int<C::kD>>{}, _1{});
  };
  const auto tma_q = query_map(p.q), tma_do = query_map(p.d_o);
  const auto tma_k = key_map(p.k), tma_v = key_map(p.v);
  using TmaQ = std::remove_const_t<decltype(tma_q)>;
  using TmaK = std::remove_const_t<decltype(tma_k)>;
  auto* kernel = attention_backward<C, TmaQ, TmaK>;
  constexpr int kBytes = sizeof(typename C::Shared);
  static_assert(kBytes <= 232448);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "cudaFuncSetAttribute");
  kernel<<<p.ctas, C::kThreads, kBytes, stream>>>(a, tma_q, tma_do, tma_k, tma_v);
  check_launch("attention backward");
}

}  // namespace tautline::kernels::sm90
