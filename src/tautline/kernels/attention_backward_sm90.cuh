// The kernel of attention_backward_sm90.h. One producer warpgroup (a thread that loads tiles with
// TMA, a thread that moves d_q to and from where it gathers), two consumer warpgroups of 64 keys
// each.
//
// A step is one tile of M queries against 128 keys; scores are transposed, keys by queries, so that
// P^T and dS^T are register operands of the products for d_v and d_k:
//   S^T = K Q^T    dP^T = V dO^T    dV += P^T dO    dQ = dS K (dS through shared memory)
//   dK += dS^T Q
// The next step's S^T is issued behind this step's dQ and dK, over the ends of key blocks and items
// too, so the tensor cores have work while the consumers exponentiate and store.
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
  static constexpr int kD = kD_, kM = kM_, kN = 128, kThreads = 384;
  static constexpr int kQStages = 3, kDoStages = 2, kVStages = kD == 128 ? 1 : 2;
  using Atom = GMMA::Layout_K_SW128_Atom<E>;
  template <int kRows, int kStages>
  using Tiles = decltype(tile_to_shape(Atom{}, Shape<Int<kRows>, Int<kD>, Int<kStages>>{}));
  template <int kRows, int kStages>  // the same, columns first
  using Transposed = decltype(composition(
      Tiles<kRows, kStages>{}, make_layout(Shape<Int<kD>, Int<kRows>, Int<kStages>>{},
                                           make_stride(Int<kRows>{}, _1{}, Int<kRows * kD>{}))));
  using LayoutQ = Tiles<kM, kQStages>;
  using LayoutQt = Transposed<kM, kQStages>;
  using LayoutDo = Tiles<kM, kDoStages>;
  using LayoutDot = Transposed<kM, kDoStages>;
  using LayoutK = Tiles<kN, 2>;
  using LayoutKt = Transposed<kN, 2>;
  using LayoutV = Tiles<kN, kVStages>;
  using LayoutDs =
      decltype(tile_to_shape(GMMA::Layout_MN_SW128_Atom<E>{}, Shape<Int<kM>, Int<kN>>{}));
  using LayoutDst = decltype(composition(
      LayoutDs{}, make_layout(Shape<Int<kN>, Int<kM>>{}, make_stride(Int<kM>{}, _1{}))));
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
  static constexpr uint32_t kQBytes = kM * kD * 2, kKBytes = kN * kD * 2;
  static constexpr uint32_t kRowBytes = Scores::kRows ? kM * 4 : 0;
  static constexpr int kSlot = kM * kD;  // floats of d_q of a tile

  struct alignas(1024) Shared {
    alignas(1024) E q[kQStages * kM * kD];
    alignas(1024) E d_o[kDoStages * kM * kD];
    alignas(1024) E k[2 * kN * kD];
    alignas(1024) E v[kVStages * kN * kD];
    alignas(1024) E ds[kM * kN];
    alignas(1024) float4 dq[kSlot / 4];  // on its way to or from where it gathers
    alignas(128) float lse[kQStages][kM];
    alignas(128) float delta[kDoStages][kM];
    KeyBlock block[2];
    uint64_t full_k[2], empty_k[2], full_v[kVStages], empty_v[kVStages];
    uint64_t full_q[kQStages], empty_q[kQStages], full_do[kDoStages], empty_do[kDoStages];
    uint64_t ds_free, dq_out, dq_sent, dq_in, dq_read;
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

template <class Mma, class A, class B, class Acc>
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

/// A ring of stages; `phase` is the parity to wait for.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t phase;
  __device__ __forceinline__ explicit Ring(uint32_t phase) : phase(phase) {}
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, phase ^= 1;
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
      EmptyBarrier::wait(&s.empty_k[at_k.stage], at_k.phase);
      s.block[at_k.stage] = b;
      FullBarrier::arrive_and_expect_tx(&s.full_k[at_k.stage], C::kKBytes);
      copy(tma_k.with(s.full_k[at_k.stage]),
           slice_k.partition_S(rows_of(mk, int(b.k_start) + b.n0, b.head, Int<C::kN>{})),
           slice_k.partition_D(sk(_, _, at_k.stage)));
      at_k.advance();
      Walk<C> w(b);
      for (int t = 0; t < b.steps; ++t, w.advance(b)) {
        const int row = int(b.q_start) + w.tile * C::kM, head = b.head * group + w.member;
        const float* rows = p.rows + (int64_t{b.tile0 + w.tile} * p.heads + head) * 2 * C::kM;
        EmptyBarrier::wait(&s.empty_q[at_q.stage], at_q.phase);
        FullBarrier::arrive_and_expect_tx(&s.full_q[at_q.stage], C::kQBytes + C::kRowBytes);
        copy(tma_q.with(s.full_q[at_q.stage]),
             slice_q.partition_S(rows_of(mq, row, head, Int<C::kM>{})),
             slice_q.partition_D(sq(_, _, at_q.stage)));
        if constexpr (C::Scores::kRows)
          SM90_BULK_COPY_G2S::copy(rows, &s.full_q[at_q.stage], s.lse[at_q.stage], C::kRowBytes);
        at_q.advance();
        EmptyBarrier::wait(&s.empty_do[at_do.stage], at_do.phase);
        FullBarrier::arrive_and_expect_tx(&s.full_do[at_do.stage], C::kQBytes + C::kRowBytes);
        copy(tma_do.with(s.full_do[at_do.stage]),
             slice_do.partition_S(rows_of(mdo, row, head, Int<C::kM>{})),
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
  for (;; at_k.advance()) {
    FullBarrier::wait(&s.full_k[at_k.stage], at_k.phase);
    const KeyBlock& b = s.block[at_k.stage];
    if (b.head < 0) break;
    bulk_wait();  // the block before may have the same tiles
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
      if (part == Part::kLast) {
        EmptyBarrier::wait(&s.dq_read, read.phase);
        read.advance();
        if (b.chained) await_turn(p.turns + tile, place);
        FullBarrier::arrive_and_expect_tx(&s.dq_in, kBytes);
        SM90_BULK_COPY_G2S::copy(slot, &s.dq_in, s.dq, kBytes);
      } else {
        EmptyBarrier::wait(&s.dq_out, out.phase);
        out.advance();
        if (b.chained) await_turn(p.turns + tile, place);
        part == Part::kFirst ? bulk_store(slot, s.dq, kBytes) : bulk_add(slot, s.dq, kBytes);
        bulk_wait_read();
        EmptyBarrier::arrive(&s.dq_sent);
        if (b.chained) {
          bulk_wait();
          pass_turn(p.turns + tile, place + 1);
        }
      }
    }
    EmptyBarrier::arrive(&s.empty_k[at_k.stage]);
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
  const auto shared = [](auto* x, auto layout) { return make_tensor(make_smem_ptr(x), layout); };
  const auto fk = my_s.make_fragment_A(my_s.partition_A(shared(s.k, typename C::LayoutK{})));
  const auto fv = my_s.make_fragment_A(my_s.partition_A(shared(s.v, typename C::LayoutV{})));
  const auto fq = my_s.make_fragment_B(my_s.partition_B(shared(s.q, typename C::LayoutQ{})));
  const auto fdo = my_s.make_fragment_B(my_s.partition_B(shared(s.d_o, typename C::LayoutDo{})));
  const auto fqt = my_kv.make_fragment_B(my_kv.partition_B(shared(s.q, typename C::LayoutQt{})));
  const auto fdot =
      my_kv.make_fragment_B(my_kv.partition_B(shared(s.d_o, typename C::LayoutDot{})));
  const auto fds = my_q.make_fragment_A(my_q.partition_A(shared(s.ds, typename C::LayoutDs{})));
  const auto fkt = my_q.make_fragment_B(my_q.partition_B(shared(s.k, typename C::LayoutKt{})));
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
  Tensor ds_to = my_copy.partition_D(shared(s.ds, typename C::LayoutDst{}));
  const bool leader = lane == 0;
  const typename C::Scores policy(p.scale, p.activation);

  Ring<2> at_k(0);
  Ring<C::kVStages> at_v(0);
  Ring<C::kQStages> at_q(0);
  Ring<C::kDoStages> at_do(0);
  Ring<1> ds_free(1), sent(1), in(0);
  float4* staged = s.dq + group * (C::kSlot / 8) + in_group;  // [i][128 threads] of a warpgroup
  // A step's queries have come, and at its first step a block's keys.
  const auto await_queries = [&](const KeyBlock& b, E* keys, bool first, int rows,
                                 const Ring<C::kQStages>& at) {
    FullBarrier::wait(&s.full_q[at.stage], at.phase);
    if (first && b.n0 + kN > b.nk) clear_tail<kN, kD>(keys, b.nk - b.n0, in_group, group);
    if (rows < kM) clear_tail<kM, kD>(s.q + at.stage * kM * kD, rows, in_group, group);
  };
  // d_k and d_v of a block leave, under the first products of the next.
  const auto finish = [&](int k_stage) {
    const KeyBlock& b = s.block[k_stage];
    const int keys = b.nk - b.n0, head = b.head;
    const int64_t token = b.k_start + b.n0;
    store_rows<kD / 8>(dv.data(), static_cast<E*>(p.d_v) + token * p.v_token + head * p.v_head,
                       p.v_token, 64 * group + row, keys, p.beta);
    store_rows<kD / 8>(dk.data(), static_cast<E*>(p.d_k) + token * p.k_token + head * p.k_head,
                       p.k_token, 64 * group + row, keys, p.scale * p.beta);
    __syncwarp();
    if (leader) EmptyBarrier::arrive(&s.empty_k[k_stage]);
  };

  FullBarrier::wait(&s.full_k[0], 0);
  if (s.block[0].head < 0) return;
  clear(dk);
  clear(dv);
  Walk<C> w(s.block[0]);
  await_queries(s.block[0], s.k, true, w.rows(s.block[0]), at_q);
  issue(mma_s, fk(_, _, _, 0), fq(_, _, _, 0), scores);
  warpgroup_wait<0>();  // nothing in flight where the loop begins: ptxas would serialise all of it
  warpgroup_fence_operand(scores);
  const int members = p.heads / p.kv_heads;
  int last_q = -1;  // stage of the queries of the step before
  for (;;) {
    const KeyBlock& b = s.block[at_k.stage];
    const int steps = b.steps;
    FullBarrier::wait(&s.full_v[at_v.stage], at_v.phase);
    int t = 0;
    do {
      const int m0 = w.tile * kM, rows = w.rows(b);
      const bool last = t + 1 == steps;
      FullBarrier::wait(&s.full_do[at_do.stage], at_do.phase);
      if (rows < kM) clear_tail<kM, kD>(s.d_o + at_do.stage * kM * kD, rows, in_group, group);
      if (t == 0 && b.n0 + kN > b.nk)
        clear_tail<kN, kD>(s.v + at_v.stage * kN * kD, b.nk - b.n0, in_group, group);
      warpgroup_wait<0>();  // scores; the last step's d_k
      warpgroup_fence_operand(scores);
      warpgroup_fence_operand(dk);
      if (leader && last_q >= 0) EmptyBarrier::arrive(&s.empty_q[last_q]);
      issue(mma_s, fv(_, _, _, at_v.stage), fdo(_, _, _, at_do.stage), dp);
      if (t == 0 && last_q >= 0) finish(at_k.stage ^ 1);
      last_q = at_q.stage;

      policy.template weights<kM>(scores.data(), p_words, gates, s.lse[at_q.stage], lane);
      const int shift = b.nk - b.nq;
      if (rows < kM || b.n0 + kN > b.nk || b.n0 + kN - 1 > m0 + shift + p.right ||
          b.n0 < m0 + kM - 1 + shift - p.left) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int key = b.n0 + 64 * group + row + 8 * r;
          const int low = max(-1, key - shift - p.right - m0) - 2 * (lane & 3);
          const int high =
              (key < b.nk ? min(rows, key - shift + p.left + 1 - m0) : -1) - 2 * (lane & 3);
#pragma unroll
          for (int j = 0; j < kM / 8; ++j) {
            const uint32_t keep = (8 * j >= low && 8 * j < high ? 0x0000ffffu : 0u) |
                                  (8 * j + 1 >= low && 8 * j + 1 < high ? 0xffff0000u : 0u);
            p_words[2 * j + r] &= keep;
            if constexpr (C::Scores::kGates) gates[2 * j + r] &= keep;
          }
        }
      }
      issue(mma_kv, p16, fdot(_, _, _, at_do.stage), dv,
            t == 0 ? GMMA::ScaleOut::Zero : GMMA::ScaleOut::One);
      warpgroup_wait<1>();
      warpgroup_fence_operand(dp);
      policy.template gradients<kM>(C::Scores::kGates ? gates : p_words, dp.data(), ds_words,
                                    s.delta[at_do.stage], lane);
      if (!b.seen) {  // its deltas are anything
#pragma unroll
        for (int i = 0; i < kM / 4; ++i) ds_words[i] = 0;
      }
      if (leader && last) EmptyBarrier::arrive(&s.empty_v[at_v.stage]);
      EmptyBarrier::wait(&s.ds_free, ds_free.phase);  // both warpgroups' d_q of the step before
      ds_free.advance();
      copy(to_shared, ds_from, ds_to);
      cutlass::arch::fence_view_async_shared();
      cutlass::arch::NamedBarrier::sync(256, 1);

      Ring<C::kQStages> next_q = at_q;
      next_q.advance();
      Ring<2> next_k = at_k;
      if (last) {
        next_k.advance();
        FullBarrier::wait(&s.full_k[next_k.stage], next_k.phase);
      }
      Walk<C> next = w;
      const KeyBlock& next_b = s.block[next_k.stage];
      if (next_b.head >= 0) {
        last ? void(next = Walk<C>(next_b)) : next.advance(b);
        await_queries(next_b, s.k + next_k.stage * kN * kD, last, next.rows(next_b), next_q);
      }
      // In one piece, without branches: ptxas loses count of the products in flight otherwise. After
      // the last block the scores are of whatever lies there.
      issue(mma_q, fds, fkt(_, _, _, at_k.stage), dq);
      issue(mma_kv, ds16, fqt(_, _, _, at_q.stage), dk,
            t == 0 ? GMMA::ScaleOut::Zero : GMMA::ScaleOut::One);
      warpgroup_wait<2>();  // d_v: gives back the registers of P
      warpgroup_fence_operand(dv);
      issue(mma_s, fk(_, _, _, next_k.stage), fq(_, _, _, next_q.stage), scores);
      warpgroup_wait<2>();
      warpgroup_fence_operand(dq);
      if (leader) {
        EmptyBarrier::arrive(&s.empty_do[at_do.stage]);
        EmptyBarrier::arrive(&s.ds_free);
      }

      const Part part = part_of<C>(p, b, m0, rows);
      if (part == Part::kFirst || part == Part::kMiddle) {
        EmptyBarrier::wait(&s.dq_sent, sent.phase);
        sent.advance();
#pragma unroll
        for (int i = 0; i < size(dq) / 4; ++i)
          staged[i * 128] = float4{dq(4 * i), dq(4 * i + 1), dq(4 * i + 2), dq(4 * i + 3)};
        cutlass::arch::fence_view_async_shared();
        __syncwarp();
        if (leader) EmptyBarrier::arrive(&s.dq_out);
      } else if (part != Part::kNone) {
        if (part == Part::kLast) {
          FullBarrier::wait(&s.dq_in, in.phase);
          in.advance();
#pragma unroll
          for (int i = 0; i < size(dq) / 4; ++i) {
            const float4 x = staged[i * 128];
            dq(4 * i) += x.x, dq(4 * i + 1) += x.y, dq(4 * i + 2) += x.z, dq(4 * i + 3) += x.w;
          }
          __syncwarp();
          if (leader) EmptyBarrier::arrive(&s.dq_read);
        }
        E* to = static_cast<E*>(p.d_q) + (b.q_start + m0) * p.q_token +
                (b.head * members + w.member) * p.q_head +
                (C::kSplitColumns ? group * (kD / 2) : 0);
        store_rows<C::kQColumns / 8>(dq.data(), to, p.q_token,
                                     row + (C::kSplitColumns ? 0 : 64 * group), rows,
                                     p.scale * p.beta);
      }
      w = next;
      at_q = next_q;
      at_do.advance();
    } while (++t < steps);
    at_k.advance();
    at_v.advance();
    if (s.block[at_k.stage].head < 0) break;
  }
  warpgroup_wait<0>();
  warpgroup_fence_operand(dk);
  warpgroup_fence_operand(scores);
  finish(at_k.stage ^ 1);
}

template <class C, class TmaQ, class TmaK>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_backward(const __grid_constant__ BackwardArguments p,
                       const __grid_constant__ TmaQ tma_q, const __grid_constant__ TmaQ tma_do,
                       const __grid_constant__ TmaK tma_k, const __grid_constant__ TmaK tma_v) {
  extern __shared__ char raw[];
  auto& s = *reinterpret_cast<typename C::Shared*>(raw);
  if (threadIdx.x == 0) {
    const auto init = [](uint64_t* full, uint64_t* empty, int stages, int readers) {
      for (int i = 0; i < stages; ++i)
        FullBarrier::init(full + i, 1), EmptyBarrier::init(empty + i, readers);
    };
    init(s.full_k, s.empty_k, 2, 8 + 1);  // the consumers' warps, and the one that gathers d_q
    init(s.full_v, s.empty_v, C::kVStages, 8);
    init(s.full_q, s.empty_q, C::kQStages, 8);
    init(s.full_do, s.empty_do, C::kDoStages, 8);
    init(&s.dq_in, &s.dq_read, 1, 8);
    init(&s.dq_sent, &s.dq_out, 1, 8);
    EmptyBarrier::init(&s.ds_free, 8);
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  if (cutlass::canonical_warp_group_idx() == 0) {
    cutlass::arch::warpgroup_reg_dealloc<24>();
    const int warp = cutlass::canonical_warp_idx_sync();
    if (warp < 2 && cute::elect_one_sync()) {
      if (warp == 0) produce<C>(s, p, tma_q, tma_do, tma_k, tma_v);
      if (warp == 1) gather<C>(s, p);
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
