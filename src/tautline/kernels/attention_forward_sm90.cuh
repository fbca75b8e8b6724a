// Attention forward for Hopper. A persistent CTA has one producer thread, which loads tiles with TMA,
// and kGroups warpgroups, each of which owns 64 queries at a time and multiplies with wgmma.
//
// The producer turns the CTA's tiles into passes: 64 * kGroups queries of one head and the blocks of
// kKeys keys that any of them sees. A warpgroup multiplies only the blocks that its own 64 queries
// see and lets the others go by; it waits for no other warpgroup, so one's exponentials run under
// another's products, and one may be passes ahead: rows are dealt to the warpgroups in turn, whether
// passes are full or not. A tile of the order is two passes, one from either end of the sequence, so
// that all tiles of a causal sequence weigh the same and stand side by side in the order, where
// neighbours find its keys in L2. Where the keys of both fit in shared memory they are loaded once.
//
// Tensor maps end at each sequence's end (hopper_map.h), so tails are zeros: rows of other samples
// are never read, and stores of partial tiles are clipped.
#pragma once

#include <algorithm>
#include <type_traits>

#include "tautline/kernels/attention_order.h"
#include "tautline/kernels/attention_score_sm90.cuh"
#include "tautline/kernels/hopper.cuh"

namespace tautline::kernels::sm90 {

constexpr int kRows = 64, kWarpRows = 16;  // of a warpgroup, of its warps

struct ForwardArguments {
  CUtensorMap q, k, v, o;
  HeadsView q_view, k_view, v_view, o_view;
  float* lse;                            // [H, rows]; null for pointwise scores
  const int64_t *q_offsets, *k_offsets;  // q_offsets null: `seeds` queries for every sequence
  AttentionOrder order;
  int64_t rows;
  int32_t heads, group, seeds;  // group: query heads of a key/value head
  int32_t head_dim, value_dim;  // of the kernel's columns
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

template <class E, int kD, int kN, int kG, int kP, bool kOver, class S,
          bool kCut = kN == 128 && kG == 2, bool kQ = false>
struct ForwardConfig {
  using Element = E;
  using Score = S;
  static constexpr int kDim = kD, kKeys = kN, kGroups = kG, kPasses = kP;
  static constexpr bool kOverlap = kOver;  // the next scores under this block's weights
  static constexpr int kTile = kRows * kG * kP;
  static_assert(kP == 1 || kP == 2);
  static constexpr bool kQueriesInRegisters = kQ;
  static constexpr int kThreads = 128 * (kG + 1), kQueries = kRows * kG, kHalves = kD / 64;
  static constexpr int kConsumerRegisters = kG == 2 ? 232 : kG == 3 ? 160 : 112;
  static constexpr int kProducerRegisters = kG == 2 ? 40 : kG == 3 ? 32 : 24;
  static constexpr int kTail = kCut ? kN / 2 : kN;  // a last block of at most so many keys is cut
  static constexpr int kQBytes = kRows * kD * 2, kBlockBytes = kN * kD * 2;
  static constexpr int kRoom = 227 * 1024 - 2048;
  static constexpr int kStages = std::min(8, (kRoom - 2 * kG * kQBytes) / (2 * kBlockBytes));
  static constexpr int kSlots = std::min(16, (kRoom - 2 * kStages * kBlockBytes) / kQBytes);
  static constexpr int kDepth = 8;  // of passes that have been announced
  static_assert(kStages >= 2 && kSlots >= 2 * kG);

  struct Shared {
    char q[kSlots][kQBytes];  // 64 queries each; o takes their place
    char k[kStages][kBlockBytes];
    char v[kStages][kBlockBytes];
    Pass pass[kDepth];
    uint64_t full_pass[kDepth], empty_pass[kDepth], empty_q[kSlots];
    uint64_t full_k[kStages], empty_k[kStages], full_v[kStages], empty_v[kStages];
  };
};

/// One row once more, by one warp, from global memory: plain online softmax, a key at a time.
template <class E, int kD>
__device__ __forceinline__ void rescue_row(const ForwardArguments& p, const Pass& pass,
                                           int32_t row) {
  constexpr int kMine = kD / 32;  // columns of a lane
  const int lane = threadIdx.x % 32;
  const bool in_keys = lane * kMine < p.head_dim, in_values = lane * kMine < p.value_dim;
  const auto at = [&](const HeadsView& view, int64_t token, int64_t head) {
    return static_cast<E*>(view.data) + token * view.token_stride + head * view.head_stride +
           lane * kMine;
  };
  const int32_t kv_head = pass.head / p.group;
  const Keys seen = keys_of(p, pass.diagonal, pass.keys, row);
  const E* q = at(p.q_view, pass.q_token + row, pass.head);
  float out[kMine] = {}, top = -INFINITY, sum = 0;
#pragma unroll 1
  for (int32_t j = seen.first; j < seen.last; ++j) {
    const E* k = at(p.k_view, pass.k_token + j, kv_head);
    const E* v = at(p.v_view, pass.k_token + j, kv_head);
    float s = 0;
    if (in_keys)
      for (int c = 0; c < kMine; ++c) s += static_cast<float>(q[c]) * static_cast<float>(k[c]);
    for (int other = 16; other > 0; other /= 2) s += __shfl_xor_sync(0xffffffffu, s, other);
    s *= p.numbers.scale;
    const float most = fmaxf(top, s), factor = exp2f(top - most), weight = exp2f(s - most);
    if (in_values)
      for (int c = 0; c < kMine; ++c) out[c] = out[c] * factor + weight * static_cast<float>(v[c]);
    sum = sum * factor + weight;
    top = most;
  }
  E* o = at(p.o_view, pass.row + row, pass.head);
  if (in_values)
    for (int c = 0; c < kMine; ++c) o[c] = static_cast<E>(out[c] / sum);
  if (lane == 0) p.lse[pass.head * p.rows + pass.row + row] = (top + log2f(sum)) * 0.69314718056f;
}

/// A place in a ring of barriers and the parity of its phase.
template <int kStages>
struct Cursor {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

/// An item of the order: a tile of one head.
struct Item {
  int32_t sequence, tile, head;
};

template <class C>
__device__ __forceinline__ void produce(const ForwardArguments& p, typename C::Shared& s) {
  using namespace hopper;
  constexpr int kStages = C::kStages;
  tma_prefetch_map(&p.q), tma_prefetch_map(&p.k), tma_prefetch_map(&p.v), tma_prefetch_map(&p.o);
  const int32_t ctas = gridDim.x, cta = blockIdx.x;
  if (p.order.count[1] != C::kTile) __trap();  // made for heads of another width
  const int64_t items = int64_t{*p.order.count} * p.heads;
  const auto item_of = [&](int64_t round) {
    const int64_t i = order_item(round, cta, ctas);
    if (i >= items) return Item{-1, 0, 0};
    const int64_t tile = i / p.heads;
    const auto at = reinterpret_cast<const int2*>(p.order.tiles)[tile];
    return Item{at.x, at.y, static_cast<int32_t>(i - tile * p.heads)};
  };
  struct Span {
    int64_t q, k;
    int32_t nq, nk;
  };
  const auto span_of = [&](const Item& item) {
    if (item.sequence < 0) return Span{};
    const int64_t k = p.k_offsets[item.sequence], k_end = p.k_offsets[item.sequence + 1];
    if (p.q_offsets == nullptr) return Span{0, k, p.seeds, static_cast<int32_t>(k_end - k)};
    const int64_t q = p.q_offsets[item.sequence], q_end = p.q_offsets[item.sequence + 1];
    return Span{q, k, static_cast<int32_t>(q_end - q), static_cast<int32_t>(k_end - k)};
  };
  Cursor<C::kDepth> at_pass;
  Cursor<C::kSlots> at_q;
  Cursor<kStages> at_k, at_v;
  const auto load = [&](const CUtensorMap& map, uint64_t* full, uint64_t* empty, char* to,
                        Cursor<kStages>& at, int64_t start, int32_t keys, int32_t block,
                        int32_t head) {
    const int32_t first = block * C::kKeys, count = min(C::kKeys, keys - first);
    barrier_wait(&empty[at.stage], at.phase ^ 1);
    barrier_expect(&full[at.stage], C::kBlockBytes);
#pragma unroll
    for (int h = 0; h < C::kHalves; ++h)
      tma_load(&map, &full[at.stage], to + at.stage * C::kBlockBytes + h * C::kKeys * 128, 64 * h,
               C::kKeys - count, static_cast<int32_t>(start) + first + count, head);
    at.next();
  };
  Item item = item_of(0), following = item_of(1);
  Span span = span_of(item);
  int32_t group = 0;
  for (int64_t round = 0; item.sequence >= 0; ++round) {
    const Item later = item_of(round + 2);  // asked for long before they are needed
    const Span next_span = span_of(following);
    const int32_t shift = span.nk - span.nq, kv_head = item.head / p.group;
    const auto blocks_of = [&](int32_t part) {
      const int32_t row = part * C::kQueries;
      const int32_t first = keys_of(p, row + shift, span.nk, 0).first;
      const int32_t last =
          keys_of(p, row + shift, span.nk, min(C::kQueries, span.nq - row) - 1).last;
      return last <= first ? Keys{0, 0} : Keys{first / C::kKeys, (last + C::kKeys - 1) / C::kKeys};
    };
    const int32_t late =
        C::kPasses == 1 ? item.tile : (span.nq + C::kQueries - 1) / C::kQueries - 1 - item.tile;
    const bool both = late != item.tile;
    Keys blocks = blocks_of(late);
    bool resident = false;
    if (both) {
      const Keys others = blocks_of(item.tile);
      const Keys all{min(blocks.first, others.first), max(blocks.last, others.last)};
      resident = others.first < others.last && all.last - all.first <= kStages;
      if (resident) blocks = all;
    }
    for (int32_t turn = 0; turn <= both; ++turn) {
      const int32_t part = turn == 0 ? late : item.tile;
      const int32_t row = part * C::kQueries, left = span.nq - row;
      if (turn == 1 && !resident) blocks = blocks_of(part);
      Pass pass;
      pass.queries = left;
      pass.diagonal = row + shift;
      pass.keys = span.nk;
      pass.block = blocks.first;
      pass.blocks = blocks.last - blocks.first;
      pass.head = item.head;
      pass.row =
          row + static_cast<int32_t>(p.q_offsets ? span.q : int64_t{item.sequence} * p.seeds);
      pass.q_token = static_cast<int32_t>(span.q) + row;
      pass.k_token = static_cast<int32_t>(span.k);
      const int32_t active = min(C::kGroups, (left + kRows - 1) / kRows);
      pass.slot = at_q.stage;
      pass.group = group;
      pass.keep = resident && turn == 0;
      // Dealt in turn; after a full pass by one more, since its last rows may see more keys.
      group = (group + active + active / C::kGroups) % C::kGroups;
      uint64_t* full = &s.full_pass[at_pass.stage];
      barrier_wait(&s.empty_pass[at_pass.stage], at_pass.phase ^ 1);
      s.pass[at_pass.stage] = pass;
      barrier_expect(full, active * C::kQBytes);
      at_pass.next();
      for (int g = 0; g < active; ++g) {
        const int32_t count = min(kRows, left - g * kRows);
        barrier_wait(&s.empty_q[at_q.stage], at_q.phase ^ 1);
#pragma unroll
        for (int h = 0; h < C::kHalves; ++h)
          tma_load(&p.q, full, s.q[at_q.stage] + h * kRows * 128, 64 * h, kRows - count,
                   pass.q_token + g * kRows + count, item.head);
        at_q.next();
      }
      if (resident && turn == 1) continue;
      // From the last block to the first, in the order in which they are needed: K, K, V, K, V, ...
      for (int32_t n = 0; n <= pass.blocks; ++n) {
        const int32_t block = pass.block + pass.blocks - 1 - n;
        if (n < pass.blocks)
          load(p.k, s.full_k, s.empty_k, s.k[0], at_k, span.k, span.nk, block, kv_head);
        if (n > 0)
          load(p.v, s.full_v, s.empty_v, s.v[0], at_v, span.k, span.nk, block + 1, kv_head);
      }
    }
    item = following;
    following = later;
    span = next_span;
  }
  barrier_wait(&s.empty_pass[at_pass.stage], at_pass.phase ^ 1);
  s.pass[at_pass.stage].queries = -1;
  barrier_arrive(&s.full_pass[at_pass.stage]);
}

template <int W>
using Width = std::integral_constant<int, W>;
template <int kCount, int kAll>
__device__ __forceinline__ float (&first_of(float (&x)[kAll]))[kCount] {
  return reinterpret_cast<float(&)[kCount]>(x);
}

template <class C>
__device__ __forceinline__ void consume(const ForwardArguments& p, typename C::Shared& s,
                                        int group) {
  using namespace hopper;
  using E = typename C::Element;
  constexpr int kN = C::kKeys, kD = C::kDim, kStages = C::kStages;
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const int my_row = thread / 32 * kWarpRows + lane / 4, my_column = lane % 4 * 2;
  float scores[kN / 2], out[kD / 2];
  uint32_t weights[kN / 4], queries[C::kQueriesInRegisters ? kD / 4 : 4];
  typename C::Score score;
  Cursor<C::kDepth> at_pass;
  Cursor<kStages> at_k, at_v;
  uint64_t* storing = nullptr;  // the barrier to tell once the last output has left
  const auto stored = [&] {
    if (storing != nullptr && lane == 0) {
      tma_store_wait_read();
      barrier_arrive(storing);
    }
    storing = nullptr;
  };

  const auto done_with_pass = [&] {
    if (lane == 0) barrier_arrive(&s.empty_pass[at_pass.stage]);
  };

  for (;; at_pass.next()) {
    barrier_wait(&s.full_pass[at_pass.stage], at_pass.phase);
    const Pass& told = s.pass[at_pass.stage];
    const Pass pass = told;
    if (pass.queries < 0) break;
    const int part = group - pass.group + (group < pass.group ? C::kGroups : 0);
    const int slot = pass.slot + part - (pass.slot + part < C::kSlots ? 0 : C::kSlots);
    const bool keep = pass.keep;
    const int32_t row = part * kRows, count = min(kRows, pass.queries - row);
    int32_t begin = pass.block, end = pass.block;  // blocks that my rows see
    Keys top{}, bottom{};
    if (count > 0) {
      top = keys_of(p, pass.diagonal, pass.keys, row);
      bottom = keys_of(p, pass.diagonal, pass.keys, row + count - 1);
      if (bottom.last > top.first) begin = top.first / kN, end = (bottom.last + kN - 1) / kN;
    }
    const Cursor<kStages> start = at_k;
    const auto release_k = [&](int stage) {
      if (!keep && lane == 0) barrier_arrive(&s.empty_k[stage]);
    };
    const auto release_v = [&](int stage) {
      if (!keep && lane == 0) barrier_arrive(&s.empty_v[stage]);
    };
    const auto skip = [&](int32_t blocks) {
      for (; blocks > 0; --blocks) {
        barrier_wait(&s.full_k[at_k.stage], at_k.phase);
        release_k(at_k.stage);
        at_k.next();
        barrier_wait(&s.full_v[at_v.stage], at_v.phase);
        release_v(at_v.stage);
        at_v.next();
      }
    };
    const Tile q_tile(s.q[slot]);
    // Of a block, its first W keys: all, or kTail of the last one.
    const auto multiply_qk = [&]<int W>(Width<W>, int stage) {
      const Tile k_tile(s.k[stage]);
      auto& x = first_of<W / 2>(scores);
      hold(x);
      wgmma_fence();
#pragma unroll
      for (int d = 0; d < kD / 16; ++d) {
        const uint64_t k_part = k_tile.at(d / 4 * kN * 128 + d % 4 * 32);
        if constexpr (C::kQueriesInRegisters)
          mma_registers_shared<E, W>(queries + 4 * d, k_part, x, d > 0);
        else
          mma_shared<E, W>(q_tile.at(d / 4 * kRows * 128 + d % 4 * 32), k_part, x, d > 0);
      }
      wgmma_commit();
    };
    const auto multiply_pv = [&](int stage) {
      const Tile v_tile(s.v[stage], kN * 128);
      hold(out);
      wgmma_fence();
#pragma unroll
      for (int n = 0; n < kN / 16; ++n)
        mma_registers<E, kD>(weights + 4 * n, v_tile.at(n * 16 * 128), out, true);
      wgmma_commit();
    };
    const auto mask = [&]<int W>(Width<W>, int32_t block) {
      const int32_t at = block * kN;
      const bool tail = C::Score::kMaskTail || p.right >= 0;
      if (at >= bottom.first && (!tail || at + W <= top.last)) return;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Keys seen = keys_of(p, pass.diagonal, pass.keys, row + my_row + 8 * i);
        const int32_t low = seen.first - at - my_column, high = seen.last - at - my_column;
#pragma unroll
        for (int j = 0; j < W / 8; ++j)
#pragma unroll
          for (int c = 0; c < 2; ++c)
            if (8 * j + c < low || 8 * j + c >= high)
              scores[4 * j + 2 * i + c] = C::Score::kMaskTail ? -INFINITY : 0;
      }
    };
    const auto round_weights = [&]<int W>(Width<W>) {
#pragma unroll
      for (int i = 0; i < kN / 4; ++i)
        weights[i] = i < W / 4 ? pack<E>(scores[2 * i], scores[2 * i + 1]) : 0;
    };
    float factor[2];
    const auto open = [&]<int W>(Width<W> w) {  // the first block's weights
      barrier_wait(&s.full_k[at_k.stage], at_k.phase);
      multiply_qk(w, at_k.stage);
      stored();
      wgmma_wait<0>();
      hold(scores);
      release_k(at_k.stage);
      at_k.next();
      mask(w, end - 1);
      score.weigh_first(first_of<W / 2>(scores));
      round_weights(w);
    };
    const auto step = [&](int32_t block) {  // the last weights' output, this block's weights
      if constexpr (C::kOverlap) {
        multiply_qk(Width<kN>{}, at_k.stage);
        barrier_wait(&s.full_v[at_v.stage], at_v.phase);
        multiply_pv(at_v.stage);
        wgmma_wait<1>();
      } else {
        barrier_wait(&s.full_v[at_v.stage], at_v.phase);
        multiply_pv(at_v.stage);
        barrier_wait(&s.full_k[at_k.stage], at_k.phase);
        multiply_qk(Width<kN>{}, at_k.stage);
        wgmma_wait<0>();
        hold(out);
      }
      hold(scores);
      release_k(at_k.stage);
      at_k.next();
      mask(Width<kN>{}, block);
      const bool grew = score.weigh(scores, factor);
      if constexpr (C::kOverlap) {
        // Weights are found under the product, and rounded (registers are short) after it. The wait
        // for keys keeps them apart: ptxas moves the wait for the product up to the next branch.
        hold(scores);
        if (block > begin) barrier_wait(&s.full_k[at_k.stage], at_k.phase);
        wgmma_wait<0>();
        hold(out);
        hold(scores);
      }
      release_v(at_v.stage);
      at_v.next();
      if (C::Score::kRescales && grew)
#pragma unroll
        for (int i = 0; i < kD / 2; ++i) out[i] *= factor[i / 2 % 2];
      round_weights(Width<kN>{});
    };

    if constexpr (C::kQueriesInRegisters) {
      const char* from = s.q[slot];
      const int r = thread / 32 * kWarpRows + lane % 16;
#pragma unroll
      for (int d = 0; d < kD / 16; ++d)
        load_matrices(from + d / 4 * kRows * 128 + r * 128 + ((d % 4 * 2 + lane / 16) ^ r % 8) * 16,
                      queries + 4 * d);
    }
    skip(pass.block + pass.blocks - max(end, begin));
    score.begin(p.numbers);
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) out[i] = 0;  // a flag in the first product costs registers
    if (begin < end) {
      // Of the last block the products with keys that no row sees are saved (of the first product,
      // and their weights).
      if (C::kTail < kN && bottom.last <= (end - 1) * kN + C::kTail)
        open(Width<C::kTail>{});
      else
        open(Width<kN>{});
      if (C::kOverlap && begin < end - 1) barrier_wait(&s.full_k[at_k.stage], at_k.phase);
#pragma unroll 1
      for (int32_t n = end - 2; n >= begin; --n) step(n);
      barrier_wait(&s.full_v[at_v.stage], at_v.phase);
      multiply_pv(at_v.stage);
      wgmma_wait<0>();
      hold(out);
      release_v(at_v.stage);
      at_v.next();
    } else {
      stored();
    }
    skip(begin - pass.block);
    if (keep) at_k = at_v = start;
    if (count <= 0) {
      done_with_pass();
      continue;
    }

    bool lost = false;
    if constexpr (C::Score::kRescales) {
      float lse[2];
      lost = score.finish(factor, lse);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (lane % 4 == 0 && my_row + 8 * i < count)
          p.lse[pass.head * p.rows + pass.row + row + my_row + 8 * i] = lse[i];
    } else {
      factor[0] = factor[1] = p.numbers.finish;
    }
    // Each warp stores its rows over its own of q; wgmma may have read others' too.
    if constexpr (!C::kQueriesInRegisters) sync_threads(1 + group, 128);
    char* to = s.q[slot];
#pragma unroll
    for (int j = 0; j < kD / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = my_row + 8 * i;
        *reinterpret_cast<uint32_t*>(to + j / 8 * kRows * 128 + r * 128 +
                                     ((j % 8 ^ r % 8) * 16 + my_column * 2)) =
            pack<E>(out[4 * j + 2 * i] * factor[i], out[4 * j + 2 * i + 1] * factor[i]);
      }
    fence_async_shared();
    __syncwarp();
    const int32_t warp_row = thread / 32 * kWarpRows, rows = min(kWarpRows, count - warp_row);
    if constexpr (C::Score::kTrusts) {
      if (lost)
        for (int32_t r = 0; r < rows; ++r) rescue_row<E, kD>(p, told, row + warp_row + r);
    }
    if (!lost && lane == 0 && rows > 0) {
#pragma unroll
      for (int h = 0; h < C::kHalves; ++h)
        tma_store(&p.o, to + h * kRows * 128 + warp_row * 128, 64 * h, kWarpRows - rows,
                  pass.row + row + warp_row + rows, pass.head);
      tma_store_commit();
    }
    done_with_pass();
    storing = &s.empty_q[slot];
  }
  stored();
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_forward(const __grid_constant__ ForwardArguments p) {
  extern __shared__ char raw[];
  auto& s = *reinterpret_cast<typename C::Shared*>(raw + (-hopper::shared_address(raw) & 1023));
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kDepth; ++i) {
      hopper::barrier_init(&s.full_pass[i], 1);
      hopper::barrier_init(&s.empty_pass[i], 4 * C::kGroups);
    }
    for (int i = 0; i < C::kSlots; ++i) hopper::barrier_init(&s.empty_q[i], 4);
    for (int i = 0; i < C::kStages; ++i) {
      hopper::barrier_init(&s.full_k[i], 1);
      hopper::barrier_init(&s.full_v[i], 1);
      hopper::barrier_init(&s.empty_k[i], 4 * C::kGroups);
      hopper::barrier_init(&s.empty_v[i], 4 * C::kGroups);
    }
    hopper::barrier_init_fence();
  }
  __syncthreads();
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
  if (group == 0) {
    hopper::registers_down<C::kProducerRegisters>();
    if (threadIdx.x == 0) produce<C>(p, s);
  } else {
    hopper::registers_up<C::kConsumerRegisters>();
    consume<C>(p, s, group - 1);
  }
}

}  // namespace tautline::kernels::sm90
