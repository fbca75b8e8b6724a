// The producer of the Hopper forward: one thread, which turns items of the order into passes and
// loads their queries, keys and values.
#pragma once

#include "tautline/kernels/attention_sm90/forward_config.cuh"
#include "tautline/kernels/box.cuh"

namespace tautline::kernels::sm90 {

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
  const auto load = [&](const CUtensorMap& map, int32_t width, uint64_t* full, uint64_t* empty,
                        char* to, int32_t bytes, Cursor<kStages>& at, int64_t start, int32_t keys,
                        int32_t block, int32_t head) {
    const int32_t first = block * C::kKeys, count = min(C::kKeys, keys - first);
    barrier_wait(&empty[at.stage], at.phase ^ 1);
    barrier_expect(&full[at.stage], bytes);
#pragma unroll
    for (int h = 0; h < bytes / (C::kKeys * 128); ++h)
      load_box<C::kKeys>(map, &full[at.stage], to + at.stage * bytes + h * C::kKeys * 128, 64 * h,
                         width, static_cast<int32_t>(start) + first, count, head);
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
        for (int h = 0; h < C::kKeyDim / 64; ++h)
          load_box<kRows>(p.q, full, s.q[at_q.stage] + h * kRows * 128, 64 * h, p.head_dim,
                          pass.q_token + g * kRows, count, item.head);
        at_q.next();
      }
      if (resident && turn == 1) continue;
      // From the last block to the first, in the order in which they are needed: K, K, V, K, V, ...
      for (int32_t n = 0; n <= pass.blocks; ++n) {
        const int32_t block = pass.block + pass.blocks - 1 - n;
        if (n < pass.blocks)
          load(p.k, p.head_dim, s.full_k, s.empty_k, s.k[0], C::kKBytes, at_k, span.k, span.nk,
               block, kv_head);
        if (n > 0)
          load(p.v, p.value_dim, s.full_v, s.empty_v, s.v[0], C::kVBytes, at_v, span.k, span.nk,
               block + 1, kv_head);
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

}  // namespace tautline::kernels::sm90
