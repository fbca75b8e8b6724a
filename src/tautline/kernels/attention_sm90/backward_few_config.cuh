// The shapes and barriers of backward_few.cuh.
#pragma once

#include "tautline/kernels/attention_order.h"
#include "tautline/kernels/attention_sm90/backward_config.cuh"

namespace tautline::kernels::sm90 {

template <class E_, int kD_, class Scores_>
struct FewConfig {
  using E = E_;
  using Scores = Scores_;
  static constexpr int kD = kD_, kM = 64, kN = 64, kThreads = 256, kCtas = 2;  // a multiprocessor
  // Registers of a thread, of what a multiprocessor has for each of its CTAs' two.
  static constexpr int kLoadRegisters = 40, kRegisters = 216;
  static_assert(kCtas * (kLoadRegisters + kRegisters) <= 512);
  static constexpr int kStages = kD == 64 ? 4 : 2;  // of keys and values
  static constexpr int kMostTogether = 16;          // sequences whose d_q products add up

  using LayoutQ = RowTiles<E, kD, kM, 1>;
  using LayoutQt = ColumnTiles<E, kD, kM, 1>;
  using LayoutK = RowTiles<E, kD, kN, kStages>;
  using LayoutKt = ColumnTiles<E, kD, kN, kStages>;
  using LayoutDs = ScoreTiles<E, kM, kN, 1>;
  using LayoutDst = TurnedScoreTiles<E, kM, kN, 1>;
  using LayoutTerms = TermTiles<kM, 1>;
  using LayoutScales = ScaleTiles<kN>;
  using MmaS = decltype(make_tiled_mma(
      GMMA::ss_op_selector<E, E, float, Shape<Int<kN>, Int<kM>, Int<kD>>>()));
  using MmaKv =
      decltype(make_tiled_mma(GMMA::rs_op_selector<E, E, float, Shape<Int<kN>, Int<kD>, Int<kM>>,
                                                   GMMA::Major::K, GMMA::Major::MN>()));
  using MmaQ =
      decltype(make_tiled_mma(GMMA::ss_op_selector<E, E, float, Shape<Int<kM>, Int<kD>, Int<kN>>,
                                                   GMMA::Major::MN, GMMA::Major::MN>()));
  using MmaTerms =
      decltype(make_tiled_mma(GMMA::ss_op_selector<E, E, float, Shape<Int<kN>, Int<kM>, _16>,
                                                   GMMA::Major::K, GMMA::Major::K>()));
  static constexpr uint32_t kTermBytes = Scores::kRows ? kM * kRowTerms * 2 : 0;

  /// What a sequence is, from who loads queries to who multiplies.
  struct Item {
    int64_t q_start;          // first row of o
    int32_t k_start, nq, nk;  // first key token, lengths
  };

  struct alignas(1024) Shared {
    alignas(1024) E q[kM * kD];
    alignas(1024) E d_o[kM * kD];
    alignas(1024) E k[kStages * kN * kD];  // and, when they have been multiplied, d_k
    alignas(1024) E v[kStages * kN * kD];  // d_v
    alignas(128) E scales[kScales];
    alignas(128) E terms[kM * kRowTerms];
    // Behind what products read again and again with strides of 0, see BackwardConfig.
    alignas(1024) E ds[kM * kN];
    Item item;
    uint64_t full_q, empty_q;
    uint64_t full_k[kStages], empty_k[kStages], full_v[kStages], empty_v[kStages];
  };
  static_assert(kCtas * (sizeof(Shared) + 1024) <= 233472);
};

/// Calls act(head, rank, ranks) for the heads dealt to this CTA, of each `ranks` equal parts of the list.
template <class Act>
__device__ __forceinline__ void for_each_head(const BackwardArguments& p, const Act& act) {
  const int ranks = max(1, static_cast<int>(gridDim.x) / p.heads);
  for (int i = blockIdx.x; i < p.heads * ranks; i += gridDim.x)
    act(i % p.heads, i / p.heads, ranks);
}
/// Calls act(pair) for the list's pairs dealt to a rank.
template <class Act>
__device__ __forceinline__ void for_each_pair(int pairs, int rank, int ranks, const Act& act) {
  for (int round = 0; round * ranks < pairs; ++round) {
    const auto pair = static_cast<int>(order_item(round, rank, ranks));
    if (pair < pairs) act(pair);
  }
}

/// Do any of the queries see keys [n0, n0 + kN)?
template <class C>
__device__ __forceinline__ bool is_seen(const BackwardArguments& p, int nq, int nk, int n0) {
  const int shift = nk - nq;
  return max(0, n0 - shift - p.right) < min(nq, min(n0 + C::kN, nk) - shift + p.left);
}

}  // namespace tautline::kernels::sm90
