// What the two passes of loss.h share: the problem in the kernel's types, how a kernel is laid out,
// which tiles and blocks a CTA has, and what a score starts from.
#pragma once

#include <algorithm>
#include <type_traits>

#include "tautline/kernels/hopper.cuh"
#include "tautline/kernels/softmax_loss_sm90/plan.h"

namespace tautline::kernels::softmax_sm90 {

constexpr float kLog2E = 1.44269504089f, kLn2 = 0.69314718056f;
constexpr float kOctaves = 10;  // of exponentials in the items' pass, see loss.h

/// What comes with a block of streaming vectors. Scores start from `start`: -log_q / scale of an
/// item, (10 ln 2 - lse) / scale of a row, -inf beyond the last one. So corrections cost no
/// instruction behind the product, and shared memory is read before products are issued (what is
/// asked for behind them waits for them: the queue is the same).
template <int kN>
struct alignas(16) Corrections {
  uint32_t high, uniform;  // of all ids of the block, where all have the same
  int32_t inside;          // vectors of the block; those behind are none
  uint32_t unused;
  float start[kN];
  int32_t target[kN];  // of rows, or -1
  uint32_t low[kN], id_high[kN];
  // Hits are few, and to compare every pair of ids takes as long as its exponential: first a bit of
  // 64 a vector says whether an id may be in the block.
  uint32_t seen[2 * kN];
  __device__ static __forceinline__ uint32_t bit_of(uint32_t low, uint32_t high) {
    return (low * 0x9E3779B1u + high * 0x85EBCA77u) >> (kN == 64 ? 20 : 19);
  }
};

/// What scores start from, and so which corrections come along: zeros, where nothing corrects
/// items; `start`; -inf at hits, else `start`.
enum class Start { kZero, kOwn, kHits };
template <int kN>
constexpr uint32_t correction_bytes(Start start) {
  return start == Start::kZero  ? 16
         : start == Start::kOwn ? 16 + 8 * kN
                                : static_cast<uint32_t>(sizeof(Corrections<kN>));
}

struct PassArguments {
  CUtensorMap stay, stream;
  const char* corrections;  // [blocks] of the stream
  int32_t stay_count, stream_count;
  PassPlan plan;
  float scale, to_log2, weight;
  const float* log_q;
  const int64_t *column_id, *row_id, *target;
  // The rows' pass
  const float *extra, *lse;
  float *max, *sum, *target_logit;
  const void *h, *items;
  void* d_h;
  char* row_corrections;  // of the items' pass: takes their `start`
  // The items' pass
  float* sums;    // [splits, V, E]: a split's part; null: there is one split, d_items is written
  void* d_items;  // in FP32 where float_items, else in the element
  bool float_items;
  int32_t width;
};

template <class E, int kD_, PassShape kShape>
struct Config {
  using Element = std::conditional_t<std::is_same_v<E, BFloat16>, __nv_bfloat16, __half>;
  static constexpr int kD = kD_, kN = kShape.block, kGroups = kShape.groups;
  static constexpr int kThreads = 128 * (kGroups + 1);
  // Together what there are: 504 to 512 a thread of each warpgroup, 480 of four and the producer's.
  static constexpr int kConsumerRegisters = kGroups == 2 ? 240 : kGroups == 3 ? 160 : 112;
  static constexpr int kProducerRegisters = kGroups == 3 ? 32 : 24;
  static constexpr int kTileBytes = kTile * kD * 2, kBlockBytes = kN * kD * 2;
  // Products of 64 x 64 with both operands in shared memory saturate it: where there is room, tiles
  // that stay do so in registers.
  static constexpr bool kInRegisters = kD == 64 && kGroups < 4;
  static constexpr int kSlots = kD == 256 ? 1 : 2;  // of a warpgroup's tile: this one and the next
  static constexpr int kRoom = 227 * 1024 - 2048;
  static constexpr int kStages =
      std::min<int>(8, (kRoom - kGroups * kSlots * kTileBytes) /
                           (kBlockBytes + static_cast<int>(sizeof(Corrections<kN>))));
  static_assert(kStages >= 3);
  static_assert(sizeof(Corrections<kN>) == corrections_bytes(kN));

  struct Shared {
    char stay[kGroups][kSlots][kTileBytes];
    char stream[kStages][kBlockBytes];
    Corrections<kN> corrections[kStages];
    uint64_t full_stay[kGroups][kSlots], empty_stay[kGroups][kSlots];
    uint64_t full_stream[kStages], empty_stream[kStages];
  };
};

/// The tiles and blocks of this CTA: rounds of at most one tile a warpgroup, of equal size but for
/// one.
struct Work {
  int32_t split, tile, tiles, rounds, begin, end;  // first tile; blocks [begin, end)
  __device__ __forceinline__ Work(const PassPlan& p, int groups) {
    split = static_cast<int32_t>(blockIdx.x) / p.members;
    const int64_t member = static_cast<int32_t>(blockIdx.x) % p.members;
    tile = static_cast<int32_t>(member * p.tiles / p.members);
    tiles = static_cast<int32_t>((member + 1) * p.tiles / p.members) - tile;
    rounds = (tiles + groups - 1) / groups;
    begin = static_cast<int32_t>(int64_t{split} * p.blocks / p.splits);
    end = static_cast<int32_t>(int64_t{split + 1} * p.blocks / p.splits);
  }
  __device__ __forceinline__ int32_t first(int32_t round) const {
    return tile + static_cast<int32_t>(int64_t{round} * tiles / rounds);
  }
  __device__ __forceinline__ int32_t count(int32_t round) const {
    return first(round + 1) - first(round);
  }
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

/// Ids of a thread's two staying vectors, which are 8 apart.
template <int kN>
struct StayIds {
  uint32_t low[2], high[2], bit[2];
  bool some[2];
  __device__ __forceinline__ void load(const int64_t* ids, int32_t first, int32_t count) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      some[i] = first + 8 * i < count;
      const int64_t id = some[i] ? ids[first + 8 * i] : 0;
      low[i] = static_cast<uint32_t>(id);
      high[i] = static_cast<uint32_t>(static_cast<uint64_t>(id) >> 32);
      bit[i] = Corrections<kN>::bit_of(low[i], high[i]);
    }
  }
};

/// A thread has scores s[4j + 2i + c] of staying vectors i and streaming ones 8j + 2(lane mod 4) +
/// c.
template <int kN>
__device__ __forceinline__ void start_scores(const Corrections<kN>& c, int lane,
                                             float (&s)[kN / 2]) {
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    const float2 x = *reinterpret_cast<const float2*>(c.start + 8 * j + 2 * (lane & 3));
    s[4 * j] = s[4 * j + 2] = x.x;
    s[4 * j + 1] = s[4 * j + 3] = x.y;
  }
}

/// The same, and -inf at hits, looked for where a row of the warp may have some.
template <int kN>
__device__ __forceinline__ void start_scores(const Corrections<kN>& c, int lane,
                                             const StayIds<kN>& ids, float (&s)[kN / 2]) {
  const uint2 of_all = *reinterpret_cast<const uint2*>(&c);  // high, uniform
  bool may[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    may[i] = ids.some[i] && (c.seen[ids.bit[i] / 32] >> ids.bit[i] % 32 & 1) != 0;
  start_scores(c, lane, s);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (!__any_sync(0xffffffffu, may[i])) continue;
    if (of_all.y) {  // nearly always: then low halves decide, two instructions a pair
      const bool same = may[i] && ids.high[i] == of_all.x;
#pragma unroll
      for (int j = 0; j < kN / 8; ++j) {
        const uint2 id = *reinterpret_cast<const uint2*>(c.low + 8 * j + 2 * (lane & 3));
        if (same && id.x == ids.low[i]) s[4 * j + 2 * i] = -INFINITY;
        if (same && id.y == ids.low[i]) s[4 * j + 2 * i + 1] = -INFINITY;
      }
      continue;
    }
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      const int at = 8 * j + 2 * (lane & 3);
      const uint2 id = *reinterpret_cast<const uint2*>(c.low + at);
      const uint2 high = *reinterpret_cast<const uint2*>(c.id_high + at);
      if (may[i] && id.x == ids.low[i] && high.x == ids.high[i]) s[4 * j + 2 * i] = -INFINITY;
      if (may[i] && id.y == ids.low[i] && high.y == ids.high[i]) s[4 * j + 2 * i + 1] = -INFINITY;
    }
  }
}

}  // namespace tautline::kernels::softmax_sm90
