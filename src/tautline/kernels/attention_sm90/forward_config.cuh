// What the Hopper forward's producer and warpgroups share: the problem, what a pass is, how a
// kernel is laid out (forward.cuh tells how they work together).
#pragma once

#include <algorithm>

#include "tautline/kernels/attention_order.h"
#include "tautline/kernels/attention_sm90/forward_scores.cuh"
#include "tautline/kernels/hopper.cuh"

namespace tautline::kernels::sm90 {

constexpr int kRows = 64, kWarpRows = 16;  // of a warpgroup, of its warps

struct ForwardArguments {
  CUtensorMap q, k, v, o;
  float* lse;                            // [H, rows]; null for pointwise scores
  const int64_t *q_offsets, *k_offsets;  // q_offsets null: `seeds` queries for every sequence
  AttentionOrder order;
  int64_t rows;
  int32_t heads, group, seeds;  // group: query heads of a key/value head
  int32_t head_dim, value_dim;
  int32_t left, right;
  ScoreNumbers numbers;
};

/// What the producer tells the warpgroups of a pass.
struct alignas(16) Pass {
  int32_t queries;        // from the pass's first to the sequence's end; < 0: no more passes
  int32_t diagonal;       // key position of its first query
  int32_t keys;           // of the sequence
  int32_t block, blocks;  // first one, number loaded
  int32_t head;
  int32_t row;               // of o, its first
  int32_t q_token, k_token;  // its first query, its sequence's first key
  int32_t slot, group;       // the first 64 queries': where they lie, whose they are
  int32_t keep;              // the next pass reads the same keys
};

struct Keys {
  int32_t first, last;
};
/// Keys that query i of a pass sees.
__device__ __forceinline__ Keys keys_of(const ForwardArguments& p, int32_t diagonal, int32_t keys,
                                        int32_t i) {
  const int32_t at = diagonal + i;
  return {p.left < 0 ? 0 : min(max(at - p.left, 0), keys),
          p.right < 0 ? keys : min(max(at + p.right + 1, 0), keys)};
}

/// Queries and keys of kD columns, values and outputs of kV; blocks of kN keys; kG warpgroups.
template <class E, int kD, int kV, int kN, int kG, int kP, class S>
struct ForwardConfig {
  using Element = E;
  using Score = S;
  static constexpr int kKeyDim = kD, kValueDim = kV, kKeys = kN, kGroups = kG, kPasses = kP;
  static constexpr int kTile = kRows * kG * kP;
  static_assert(kP == 1 || kP == 2);
  static_assert(kD % 64 == 0 && kV % 64 == 0);
  static constexpr int kThreads = 128 * (kG + 1), kQueries = kRows * kG;
  static constexpr int kConsumerRegisters = kG == 2 ? 232 : kG == 3 ? 160 : 112;
  static constexpr int kProducerRegisters = kG == 2 ? 40 : kG == 3 ? 32 : 24;
  static constexpr int kQBytes = kRows * kD * 2, kSlotBytes = kRows * std::max(kD, kV) * 2;
  static constexpr int kKBytes = kN * kD * 2, kVBytes = kN * kV * 2;
  static constexpr int kRoom = 227 * 1024 - 2048;
  static constexpr int kStages = std::min(8, (kRoom - 2 * kG * kSlotBytes) / (kKBytes + kVBytes));
  static constexpr int kSlots = std::min(16, (kRoom - kStages * (kKBytes + kVBytes)) / kSlotBytes);
  static constexpr int kDepth = 8;  // of passes that have been announced
  static_assert(kStages >= 2 && kSlots >= 2 * kG);

  struct Shared {
    char q[kSlots][kSlotBytes];  // 64 queries each; o takes their place
    char k[kStages][kKBytes];
    char v[kStages][kVBytes];
    Pass pass[kDepth];
    uint64_t full_pass[kDepth], empty_pass[kDepth], empty_q[kSlots];
    uint64_t full_k[kStages], empty_k[kStages], full_v[kStages], empty_v[kStages];
  };
};

/// A place in a ring of barriers and the parity of its phase.
template <int kStages>
struct Cursor {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

}  // namespace tautline::kernels::sm90
