// The order in which persistent attention kernels compute the tiles of a jagged batch: made once a
// batch for all layers, from the offsets alone, where the offsets are (no synchronisation).
//
// A tile is `tile` rows of one sequence: queries in the forward, keys in the backward. Its work is the
// number of tiles of the other side that it visits (the window hides the others) plus a constant for
// what every tile costs. The forward's list holds (sequence, tile) by falling work; tiles of equal
// work keep their natural order. Heads are not in the list: item i is head i % heads of pair
// i / heads.
//
// A paired tile is two runs of queries, one from either end of the sequence, so that a causal
// sequence's tiles weigh alike, but for the last, which may be a single run, and the run that ends
// the sequence, which may have few rows. Counted alike, they leave some CTAs 10 % more work than
// the mean, as the same CTAs may get them in each round (sequences of 1,024, of 2,048).
//
// The keys' list holds sequences by falling work of their heaviest tile, each one's tiles ascending;
// the tiles of kOrderTogether sequences that follow each other take turns. CTAs that add to d_q one
// after the other, tile after tile, so never wait for a tile that nobody has begun, and seldom at
// all, while few enough sequences are under way for their d_q to stay in L2. A sequence of moderate
// size (is_one_item) is one item, tile 0, which stands for all of its keys and weighs as much as its
// tiles together. A sequence without rows has no item.
//
// The forward deals items zigzag: CTA c of P takes in round r item order_item(r, c, P). Rounds alternate in
// direction, so that who gets the heaviest of one round gets the lightest of the next (after Meta's
// GDPA, PyTorch blog, March 2026). The backward's CTAs take the next item when they are free.
//
// Precision: integers. Lengths below 2^31. Work of 65,535 and more counts as equal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tautline/kernels/attention_problem.h"

namespace tautline::kernels {

/// The list as a kernel reads it, on the device.
struct AttentionOrder {
  const int32_t* tiles = nullptr;  // [count][2]: sequence, tile; 8-byte aligned
  const int32_t* count = nullptr;  // [2]: pairs; made_for(), which the kernel's must be
};

/// The item of CTA `cta` of `ctas` in round `round`; none where it is count * heads or more.
TAUTLINE_ELEMENT_FUNCTION int64_t order_item(int64_t round, int64_t cta, int64_t ctas) {
  return round * ctas + (round % 2 != 0 ? ctas - 1 - cta : cta);
}

enum class AttentionPass { kQueries, kKeys };
inline constexpr int64_t kMostOrderWork = 0xffff;  // what the sort tells apart
inline constexpr int kOrderTogether = 4;           // sequences whose tiles of keys take turns

struct AttentionOrderRequest {
  const int64_t* q_offsets = nullptr;  // [B + 1]; null: `seeds` queries for every sequence
  const int64_t* k_offsets = nullptr;  // [B + 1]; on the device for attention_order_cuda
  int64_t sequences = 0, seeds = 0;
  AttentionWindow window;
  AttentionPass pass = AttentionPass::kQueries;
  int64_t tile = 128, other_tile = 128;  // rows of a tile; rows of a tile of the other side
  int64_t whole = 0;      // keys' pass: side of the largest one-item sequence; 0: none
  int64_t group = 1;      // query heads of one key/value head: a key tile visits all
  int64_t tile_work = 1;  // of a tile that visits nothing: prologue, epilogue; of keys at least 1
  // > 0, of queries: tile t is runs t and last - t of tile / 2 rows. A run weighs its tile_work and
  // what it visits, for each group of so many rows that it has and once more for its loads.
  int64_t pair_group = 0;
};

/// The list is never longer; `rows`: those of all sequences together on the pass's side.
inline int64_t attention_order_capacity(const AttentionOrderRequest& r, int64_t rows) {
  return rows / r.tile + r.sequences;
}

// ---- on the host: the specification, and what to print ------------------------------------------

struct AttentionItem {
  int32_t sequence, tile;
  int64_t work;
  bool operator==(const AttentionItem&) const = default;
};

/// All items in their natural order, and sorted. UserError where a tile has no rows.
std::vector<AttentionItem> attention_items(const AttentionOrderRequest& request);
std::vector<AttentionItem> attention_order(const AttentionOrderRequest& request);

/// Zigzag, as the forward deals; each to the CTA that is free first, as the backward's CTAs take them;
/// runs of equal number, as a kernel without an order does.
enum class Dealing { kZigzag, kNextFree, kRuns };
/// Work of each of `ctas` CTAs.
std::vector<int64_t> dealt_work(const std::vector<AttentionItem>& items, int64_t heads,
                                int64_t ctas, Dealing dealing = Dealing::kZigzag);
/// Work of the busiest CTA over the mean; 1 where there is no work.
double imbalance(const std::vector<int64_t>& work);
/// A few lines: items, work, balance, the first items of the first CTAs.
std::string describe(const std::vector<AttentionItem>& items, int64_t heads, int64_t ctas);

// ---- on the device ------------------------------------------------------------------------------

struct AttentionOrderBuild : AttentionOrderRequest {
  int64_t capacity = 0;          // attention_order_capacity
  int32_t* tiles = nullptr;      // [capacity][2]
  int32_t* count = nullptr;      // [2]
  int32_t* workspace = nullptr;  // [attention_order_workspace], 8-byte aligned
  void* stream = nullptr;
};
inline int64_t attention_order_workspace(int64_t sequences, int64_t capacity) {
  return 6 * capacity + sequences + 2;
}
/// The same list as attention_order(), by three small kernels.
void attention_order_cuda(const AttentionOrderBuild& p);

// ---- what both count with -----------------------------------------------------------------------

/// Tiles of `size` that rows [first, last) touch; 32-bit, since the device divides that faster.
TAUTLINE_ELEMENT_FUNCTION int64_t touched_tiles(int64_t first, int64_t last, int64_t size) {
  const auto s = static_cast<uint32_t>(size);
  return last <= first ? 0
                       : static_cast<uint32_t>(last - 1) / s - static_cast<uint32_t>(first) / s + 1;
}

/// One item of all its keys? As many queries and pairs as a square of `whole` has, or hardly any
/// queries: tiles of many keys would queue for their d_q.
TAUTLINE_ELEMENT_FUNCTION bool is_one_item(int64_t whole, int64_t nq, int64_t nk) {
  return nq <= whole && (nq * nk <= whole * whole || (nq <= whole / 2 && nk <= 64 * whole));
}
TAUTLINE_ELEMENT_FUNCTION bool is_one_item(const AttentionOrderRequest& r, int64_t nq, int64_t nk) {
  return r.pass == AttentionPass::kKeys && is_one_item(r.whole, nq, nk);
}

/// What a kernel must have in common with the list that it is given.
TAUTLINE_ELEMENT_FUNCTION int64_t made_for(const AttentionOrderRequest& r) {
  return r.pass == AttentionPass::kKeys ? r.whole : r.tile;
}

/// Queries of a sequence that see keys [begin, end).
TAUTLINE_ELEMENT_FUNCTION KeyRange seeing_queries(AttentionWindow window, int64_t begin,
                                                  int64_t end, int64_t nq, int64_t nk) {
  // Query i sees key j where p - left <= j <= p + right: p = i + nk - nq in [j - right, j + left].
  const int64_t shift = nk - nq;
  return {window.right < 0 ? 0 : clamp_to(begin - window.right - shift, 0, nq),
          window.left < 0 ? nq : clamp_to(end + window.left - shift, 0, nq)};
}

/// Work of queries [begin, end).
TAUTLINE_ELEMENT_FUNCTION int64_t query_work(const AttentionOrderRequest& r, int64_t begin,
                                             int64_t end, int64_t nq, int64_t nk) {
  const int64_t first = visible_keys(r.window, begin, nq, nk).first;
  const int64_t last = visible_keys(r.window, end - 1, nq, nk).last;
  return r.tile_work + touched_tiles(first, last, r.other_tile);
}

/// Work of a paired tile: that of its two runs, or of the one in the middle.
TAUTLINE_ELEMENT_FUNCTION int64_t pair_work(const AttentionOrderRequest& r, int64_t tile,
                                            int64_t nq, int64_t nk) {
  const int64_t rows = r.tile / 2, late = touched_tiles(0, nq, rows) - 1 - tile;
  int64_t work = 0;
  for (int64_t run = tile;; run = late) {
    const int64_t begin = run * rows, end = begin + rows < nq ? begin + rows : nq;
    work += query_work(r, begin, end, nq, nk) * (1 + touched_tiles(0, end - begin, r.pair_group));
    if (run == late) return work;
  }
}

/// Work of a tile's rows [begin, end) in a sequence with nq queries and nk keys.
TAUTLINE_ELEMENT_FUNCTION int64_t tile_work(const AttentionOrderRequest& r, int64_t begin,
                                            int64_t end, int64_t nq, int64_t nk) {
  if (r.pass == AttentionPass::kQueries)
    return r.pair_group > 0 ? pair_work(r, begin / r.tile, nq, nk)
                            : query_work(r, begin, end, nq, nk);
  const KeyRange queries = seeing_queries(r.window, begin, end, nq, nk);
  return r.tile_work + r.group * touched_tiles(queries.first, queries.last, r.other_tile);
}

}  // namespace tautline::kernels
