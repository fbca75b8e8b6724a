// Which CTA of a persistent attention kernel computes which tiles of a jagged batch, and in what
// order: computed from the offsets once a batch, on the host, for all layers and both passes.
//
// A tile is `tile` rows of one head of one sequence: queries in the forward and in the backward's
// pass for d_q, keys in the pass for d_k and d_v. Its work is the number of tiles of the other side
// that it visits (the window hides the others) plus a constant for what every tile costs. Tiles are
// sorted by falling work and dealt zigzag: a round gives each of P CTAs one tile, rounds alternate
// in direction, so that who gets the heaviest of one round gets the lightest of the next (after
// Meta's GDPA, PyTorch blog, March 2026). Each CTA keeps its heaviest tiles first.
//
// Host code, no torch; deterministic. O(tiles): the sort is a counting sort.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tautline/kernels/attention_problem.h"

namespace tautline::kernels {

enum class AttentionPass { kQueries, kKeys };

struct AttentionScheduleRequest {
  const int64_t* q_offsets = nullptr;  // [B + 1]; null: `seeds` queries for every sequence
  const int64_t* k_offsets = nullptr;  // [B + 1]
  int64_t sequences = 0;
  int64_t heads = 0;  // of the tiles' side: H for queries, G for keys
  int64_t seeds = 0;
  AttentionWindow window;
  AttentionPass pass = AttentionPass::kQueries;
  int64_t tile = 128, other_tile = 128;  // rows of a tile; rows of a tile of the other side
  int64_t group = 1;      // query heads of one key/value head: a key tile visits them all
  int64_t tile_work = 1;  // of a tile that visits nothing: prologue, epilogue
  int64_t ctas = 132;
};

struct AttentionTile {
  int32_t sequence, head;
  int32_t tile;  // rows [tile * request.tile, ...) of the sequence
  int32_t work;
  bool operator==(const AttentionTile&) const = default;
};

struct AttentionSchedule {
  std::vector<AttentionTile> tiles;  // CTA c has [starts[c], starts[c + 1]), in its order
  std::vector<int64_t> starts;       // [P + 1]
  std::vector<int64_t> work;         // [P]: of each CTA

  int64_t total_work() const;
  /// Work of the busiest CTA over the mean; 1 where there is no work.
  double imbalance() const;
};

/// UserError where a size does not fit (a sequence of 2^31 tiles, no CTA).
AttentionSchedule attention_schedule(const AttentionScheduleRequest& request);

/// The same tiles in their natural order, cut into P runs of equal number: what a kernel without
/// this scheduler does, for comparison.
AttentionSchedule attention_schedule_in_order(const AttentionScheduleRequest& request);

/// A few lines: tiles, work, balance, the first tiles of the first CTAs.
std::string describe(const AttentionSchedule& schedule);

/// Items [first, last) of CTA `index` where all items weigh the same (block attention: items are
/// blocks times heads): the first `items % ctas` CTAs have one more.
struct EvenShare {
  int64_t first, last;
};
inline EvenShare even_share(int64_t items, int64_t ctas, int64_t index) {
  const int64_t each = items / ctas, more = items % ctas;
  const int64_t first = index * each + (index < more ? index : more);
  return {first, first + each + (index < more ? 1 : 0)};
}

}  // namespace tautline::kernels
