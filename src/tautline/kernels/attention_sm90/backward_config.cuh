// The shapes, barriers and small tools of backward.cuh.
#pragma once

#include <cstdint>
#include <cute/tensor.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/numeric_types.h>
#include <type_traits>

#include "tautline/kernels/attention_sm90/backward_arguments.h"
#include "tautline/kernels/attention_sm90/backward_terms.h"
#include "tautline/kernels/box.cuh"

namespace tautline::kernels::sm90 {

using namespace cute;

/// Most keys of a sequence whose blocks walk upwards: of a longer one the tiles of d_q between where
/// its blocks are do not stay in L2 (mean 2485, causal: 425 TFLOP/s instead of 530).
constexpr int kMostUpwards = 2048;

/// What a key block is, from the producer to everyone else.
struct KeyBlock {
  int64_t q_start, k_start;  // first row of o and key token of the sequence
  int32_t nq, nk, n0;        // lengths, first key of the block
  int32_t head;              // of keys; negative: no more blocks
  int32_t q_first, q_last;   // tiles of queries [first, last)
  int32_t up;                // walked upwards; then the last block of keys adds to d_q first
  int32_t steps;             // tiles times query heads
  int32_t tile0;             // number of the sequence's first tile of queries among all
  int32_t seen;              // 0: no query sees these keys; the one step is a blank
  int32_t chained;           // other CTAs add to the same d_q
};

/// What becomes of a step's part of d_q: it is the only one; or the first, put where the parts
/// gather; or added there; or the last, which takes the sum of the others.
enum class Part { kOnly, kFirst, kMiddle, kLast, kNone };

/// What a step is, from the producer to everyone else.
struct alignas(16) Step {
  int32_t m0, rows;  // first query of the tile, and how many there are; 0: no query sees the keys
  int32_t flags;     // and the part, from kPart on
  int32_t member;    // of the group of query heads
  static constexpr int kFirst = 1, kLast = 2;  // of its key block
  static constexpr int kMasked = 4;            // some pairs are hidden
  static constexpr int kEnd = 16;              // not a step: there are no more
  static constexpr int kNextTakes = 32;        // the block's next step takes the others' sum
  static constexpr int kPart = 64;
  __device__ __forceinline__ Part part() const { return static_cast<Part>(flags / kPart); }
};

/// Tiles of rows of kD columns in shared memory as TMA boxes make them, and the same, columns first.
template <class E, int kD, int kRows, int kStages>
using RowTiles = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<E>{},
                                        Shape<Int<kRows>, Int<kD>, Int<kStages>>{}));
template <class E, int kD, int kRows, int kStages>
using ColumnTiles =
    decltype(composition(RowTiles<E, kD, kRows, kStages>{},
                         make_layout(Shape<Int<kD>, Int<kRows>, Int<kStages>>{},
                                     make_stride(Int<kRows>{}, _1{}, Int<kRows * kD>{}))));
/// dS, queries first, and the same, keys first.
template <class E, int kM, int kN, int kStages>
using ScoreTiles = decltype(tile_to_shape(GMMA::Layout_MN_SW128_Atom<E>{},
                                          Shape<Int<kM>, Int<kN>, Int<kStages>>{}));
template <class E, int kM, int kN, int kStages>
using TurnedScoreTiles = decltype(composition(
    ScoreTiles<E, kM, kN, kStages>{}, make_layout(Shape<Int<kN>, Int<kM>, Int<kStages>>{},
                                                  make_stride(Int<kM>{}, _1{}, Int<kM * kN>{}))));
/// lse and delta of a tile of queries as columns beside Q and dO (backward_terms.h); columns 8 to 15 are
/// 0 to 7 again, against zeros.
template <int kM, int kStages>
using TermTiles = Layout<Shape<Shape<_8, Int<kM / 8>>, Shape<_8, _2>, Int<kStages>>,
                         Stride<Stride<_8, _64>, Stride<_1, _0>, Int<kRowTerms * kM>>>;
/// All keys have the same constants: of lse, then zeros; zeros, then those of delta.
template <int kN>
using ScaleTiles = Layout<Shape<Shape<_8, Int<kN / 8>>, Shape<_8, _2>, _2>,
                          Stride<Stride<_8, _0>, Stride<_1, _64>, _64>>;
constexpr int kScales = 3 * 8 * kRowTerms;

template <class E_, int kD_, int kM_, class Scores_>
struct BackwardConfig {
  using E = E_;
  using Scores = Scores_;
  static constexpr int kD = kD_, kM = kM_, kN = 128, kThreads = 512;
  // Registers of a thread: 24 of those that load, and of the others, together what there are.
  static constexpr int kQueryRegisters = 72, kKeyRegisters = 208;
  static_assert(24 + kQueryRegisters + 2 * kKeyRegisters <= 512);
  static constexpr int kQStages = 3, kDoStages = 2, kDsStages = 2;
  // Steps that are known: the producer is three ahead of the warpgroups of keys, which are at most
  // the stages of dS ahead of d_q's.
  static constexpr int kSteps = 8;

  using LayoutQ = RowTiles<E, kD, kM, kQStages>;
  using LayoutQt = ColumnTiles<E, kD, kM, kQStages>;
  using LayoutDo = RowTiles<E, kD, kM, kDoStages>;
  using LayoutDot = ColumnTiles<E, kD, kM, kDoStages>;
  using LayoutK = RowTiles<E, kD, kN, 2>;
  using LayoutKt = ColumnTiles<E, kD, kN, 2>;
  using LayoutV = RowTiles<E, kD, kN, 1>;
  using LayoutDs = ScoreTiles<E, kM, kN, kDsStages>;
  using LayoutDst = TurnedScoreTiles<E, kM, kN, kDsStages>;
  using TwoRows = Layout<Shape<_2, _1, _1>>;
  using MmaS = decltype(make_tiled_mma(
      GMMA::ss_op_selector<E, E, float, Shape<Int<kN>, Int<kM>, Int<kD>>>(), TwoRows{}));
  using MmaKv =
      decltype(make_tiled_mma(GMMA::rs_op_selector<E, E, float, Shape<Int<kN>, Int<kD>, Int<kM>>,
                                                   GMMA::Major::K, GMMA::Major::MN>(),
                              TwoRows{}));
  // d_q in two halves: rows of 128 queries, or columns of 64.
  static constexpr bool kSplitColumns = kM == 64;
  static constexpr int kQColumns = kSplitColumns ? kD / 2 : kD;
  using MmaQ = decltype(make_tiled_mma(
      GMMA::ss_op_selector<E, E, float, Shape<_64, Int<kQColumns>, Int<kN>>, GMMA::Major::MN,
                           GMMA::Major::MN>(),
      Layout<Shape<Int<kSplitColumns ? 1 : 2>, Int<kSplitColumns ? 2 : 1>, _1>>{}));
  using LayoutTerms = TermTiles<kM, kDoStages>;
  using LayoutScales = ScaleTiles<kN>;
  using MmaTerms =
      decltype(make_tiled_mma(GMMA::ss_op_selector<E, E, float, Shape<Int<kN>, Int<kM>, _16>,
                                                   GMMA::Major::K, GMMA::Major::K>(),
                              TwoRows{}));
  static constexpr uint32_t kTermBytes = Scores::kRows ? kM * kRowTerms * 2 : 0;
  static constexpr int kSlot = kM * kD;  // floats of d_q of a tile

  struct alignas(1024) Shared {
    alignas(1024) E q[kQStages * kM * kD];
    alignas(1024) E d_o[kDoStages * kM * kD];
    alignas(1024) E k[2 * kN * kD];
    alignas(1024) E v[kN * kD];
    alignas(1024) E ds[kDsStages * kM * kN];
    alignas(128) E scales[kScales];
    alignas(128) E terms[kDoStages * kM * kRowTerms];
    // Of d_q, for half a tile. Behind what products read again and again with strides of 0:
    // compute-sanitizer takes that for twice as much in a row.
    alignas(128) float gathered[kSlot / 2];
    KeyBlock block[2];
    Step step[kSteps];
    uint64_t full_k[2], empty_k[2], full_v[2];  // of v: a warpgroup's own half
    uint64_t full_q[kQStages], empty_q[kQStages], full_do[kDoStages], empty_do[kDoStages];
    uint64_t full_terms[kDoStages];  // empty with d_o's
    uint64_t full_ds[kDsStages], empty_ds[kDsStages];
    uint64_t turn[2], added[2], passed[2];  // of parts of d_q that several CTAs add
  };
};

using FullBarrier = cutlass::arch::ClusterTransactionBarrier;
using EmptyBarrier = cutlass::arch::ClusterBarrier;

/// Tensor maps that end where sequences do (hopper_map.h): of boxes of a tile's rows, and for values and
/// what leaves of the 16 rows that a warp keeps.
struct BackwardMaps {
  CUtensorMap q, d_o, k, v, d_k, d_v;
};
/// Rows [row, row + count) of a head to a tile of `kTileRows`: kRows and kD columns, zeros beyond what
/// there is. kRows * kD * 2 bytes come to `full`.
template <int kRows, int kTileRows, int kD, class E>
__device__ __forceinline__ void load_boxes(const CUtensorMap& map, uint64_t* full, E* to, int width,
                                           int row, int count, int head) {
#pragma unroll
  for (int c = 0; c < kD; c += 64)
    hopper::load_box<kRows>(map, full, to + c * kTileRows, c, width, row, min(count, kRows), head);
}
/// The same where they are all that the barrier waits for.
template <int kRows, int kTileRows, int kD, class E>
__device__ __forceinline__ void load_rows(const CUtensorMap& map, uint64_t* full, E* to, int width,
                                          int row, int count, int head) {
  FullBarrier::arrive_and_expect_tx(full, kRows * kD * 2);
  load_boxes<kRows, kTileRows, kD>(map, full, to, width, row, count, head);
}

/// The constants of ScaleTiles; a fence and a barrier make them seen. At least kScales threads.
template <class E>
__device__ __forceinline__ void put_scales(E* scales) {
  if (threadIdx.x >= kScales) return;
  const TermScales<std::is_same_v<E, cutlass::half_t>> c;
  const int part = threadIdx.x / (8 * kRowTerms), column = threadIdx.x % kRowTerms;
  const float x = part == 0 && column < 3                  ? c.lse[column]
                  : part == 2 && column >= 3 && column < 6 ? c.delta[column - 3]
                                                           : 0.0f;
  scales[threadIdx.x] = static_cast<E>(x);
  cutlass::arch::fence_view_async_shared();
}

/// Key blocks [first, last] that queries [m0, m1) of a sequence see; last < first: none.
struct BlockRange {
  int first, last;
};
__device__ __forceinline__ BlockRange blocks_seen(int left, int right, int m0, int m1, int nq,
                                                  int nk) {
  const int shift = nk - nq, first = m0 + shift - left, last = m1 + shift + right;
  return {(first > 0 ? first : 0) / 128, ((last < nk ? last : nk) + 127) / 128 - 1};
}

/// acc = a b^T, or added to it where `first` says so; `commit` unless more products follow.
template <class Mma, class A, class B, class Acc>
__device__ __forceinline__ void issue(Mma& mma, const A& a, const B& b, Acc& acc,
                                      GMMA::ScaleOut first = GMMA::ScaleOut::Zero,
                                      bool commit = true) {
  warpgroup_fence_operand(acc);
  warpgroup_arrive();
  mma.accumulate_ = first;
#pragma unroll
  for (int k = 0; k < size<2>(a); ++k) {
    cute::gemm(mma, a(_, _, k), b(_, _, k), acc);
    mma.accumulate_ = GMMA::ScaleOut::One;
  }
  if (commit) warpgroup_commit_batch();
}

/// (2, 2, N / 8) a thread of an accumulator as the A operand of the next product: the same order.
template <class Layout>
__device__ __forceinline__ auto as_operand(Layout l) {
  const auto inner = logical_divide(get<0>(l), Shape<Underscore, Underscore, _2>{});
  return make_layout(make_layout(get<0>(inner), get<1>(inner), get<2, 0>(inner)), get<1>(l),
                     make_layout(get<2, 1>(inner), get<2>(l)));
}

/// The steps of a key block: its tiles of queries, for each query head of the group.
template <class C>
struct Walk {
  int tile, member = 0;  // member of the group of query heads
  __device__ __forceinline__ explicit Walk(const KeyBlock& b)
      : tile(b.up ? b.q_first : b.q_last - 1) {}
  __device__ __forceinline__ Walk(int tile, int member) : tile(tile), member(member) {}
  __device__ __forceinline__ void advance(const KeyBlock& b) {
    tile += b.up ? 1 : -1;
    if (tile < b.q_first || tile == b.q_last) tile = b.up ? b.q_first : b.q_last - 1, ++member;
  }
  __device__ __forceinline__ int rows(const KeyBlock& b) const {
    return b.seen ? min(C::kM, b.nq - tile * C::kM) : 0;
  }
};

/// The turn of a block of keys among those that add to a tile's d_q, from 0.
template <class C>
__device__ __forceinline__ int place_of(const KeyBlock& b, const BlockRange& range) {
  const int block = b.n0 / C::kN;
  return b.up ? range.last - block : block - range.first;
}

/// What becomes of a step's part of d_q.
template <class C>
__device__ __forceinline__ Part part_of(const BackwardArguments& p, const KeyBlock& b, int m0,
                                        int rows) {
  if (!b.seen) return Part::kNone;
  const BlockRange range = blocks_seen(p.left, p.right, m0, m0 + rows, b.nq, b.nk);
  const int place = place_of<C>(b, range);
  if (place == range.last - range.first) return place == 0 ? Part::kOnly : Part::kLast;
  return place == 0 ? Part::kFirst : Part::kMiddle;
}

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

}  // namespace tautline::kernels::sm90
