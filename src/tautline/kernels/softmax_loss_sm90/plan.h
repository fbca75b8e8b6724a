// How a pass of loss.h is dealt to CTAs, and where things lie in its workspace.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tautline/kernels/softmax_loss_sm90/loss.h"

namespace tautline::kernels::softmax_sm90 {

constexpr int kTile = 64;  // vectors that stay with a warpgroup

/// Of a pass: vectors of a streaming block, and warpgroups that share the stream.
struct PassShape {
  int block, groups;
};
constexpr PassShape rows_shape(int columns) {
  return columns == 64 ? PassShape{64, 3} : columns == 128 ? PassShape{128, 2} : PassShape{64, 2};
}
constexpr PassShape items_shape(int columns) { return rows_shape(columns); }

/// Columns of the kernel that takes vectors of `width`.
constexpr int columns_of(int64_t width) { return width <= 64 ? 64 : width <= 128 ? 128 : 256; }

/// The stream is cut into `splits`, each of which `members` CTAs walk; among these the staying
/// tiles are dealt evenly.
struct PassPlan {
  int32_t tiles, blocks;  // that stay, that stream
  int32_t splits, members;
};

/// Most CTAs' time in products of one tile and one block. A round of few tiles hides less of its
/// latencies: it counts as if it had one tile more.
inline int64_t cost(const PassPlan& p, PassShape shape) {
  const int64_t tiles = (p.tiles + p.members - 1) / p.members;
  const int64_t rounds = (tiles + shape.groups - 1) / shape.groups;
  const int64_t steps = (p.blocks + p.splits - 1) / p.splits;
  // Filling and emptying a round costs some four steps; a further split's sums are written and
  // read.
  const int64_t sums = p.splits > 1 ? p.splits * p.tiles / 32 : 0;
  return (tiles + rounds) * (steps + 4) + sums;
}

/// `most_splits`: 1 but for sums over the stream that need nothing but addition.
inline PassPlan plan_pass(int64_t stay, int64_t stream, PassShape shape, int32_t ctas,
                          int64_t most_splits) {
  PassPlan best{static_cast<int32_t>((stay + kTile - 1) / kTile),
                static_cast<int32_t>((stream + shape.block - 1) / shape.block), 1, 1};
  best.members = std::clamp(best.tiles, 1, ctas);
  const int64_t most = std::min<int64_t>({ctas, best.blocks, most_splits});
  for (int32_t splits = 2; splits <= most; ++splits) {
    PassPlan plan = best;
    plan.splits = splits;
    plan.members = std::clamp(best.tiles, 1, ctas / splits);
    if (cost(plan, shape) >= cost(best, shape)) continue;
    best = plan;
  }
  return best;
}

inline PassPlan rows_plan(const SoftmaxLossSm90& p) {
  return plan_pass(p.rows, p.classes, rows_shape(columns_of(p.width)), p.multiprocessors, 1);
}
inline PassPlan items_plan(const SoftmaxLossSm90& p) {
  constexpr int64_t kMostBytes = 256 << 20;  // of the splits' sums
  const int64_t most = kMostBytes / std::max<int64_t>(1, p.classes * p.width * 4);
  return plan_pass(p.classes, p.rows, items_shape(columns_of(p.width)), p.multiprocessors, most);
}

/// What comes with a block of streaming vectors: see Corrections.
constexpr int64_t corrections_bytes(int block) { return 16 + 24 * int64_t{block}; }

/// Where things lie, in bytes: corrections of items, of rows, sums of the splits [splits, V, E].
struct Workspace {
  int64_t columns, rows, sums, end;
};
inline Workspace workspace_of(const SoftmaxLossSm90& p) {
  const auto aligned = [](int64_t x) { return (x + 127) / 128 * 128; };
  const int columns = columns_of(p.width);
  const PassPlan rows = rows_plan(p), items = items_plan(p);
  Workspace w{};
  w.rows = aligned(w.columns + rows.blocks * corrections_bytes(rows_shape(columns).block));
  w.sums = aligned(w.rows + items.blocks * corrections_bytes(items_shape(columns).block));
  w.end = w.sums;
  if (p.d_items && items.splits > 1) w.end += items.splits * p.classes * p.width * 4;
  return w;
}

}  // namespace tautline::kernels::softmax_sm90
