#include "tautline/kernels/attention_order.h"

#include <iostream>
#include <map>
#include <set>

#include "tautline/base/error.h"

#include "kernels/order_cases.h"

namespace tautline::kernels {
namespace {

using namespace testing;

/// Work of each (sequence, tile), counted pair by pair: tiles of the other side in which some pair
/// is visible. The keys' pass counts a tile as any later one, and short sequences as one item.
std::map<std::pair<int64_t, int64_t>, int64_t> counted(const AttentionOrderRequest& r) {
  std::map<std::pair<int64_t, int64_t>, int64_t> work;
  const bool of_keys = r.pass == AttentionPass::kKeys;
  for (int64_t b = 0; b < r.sequences; ++b) {
    const int64_t nq = r.q_offsets ? r.q_offsets[b + 1] - r.q_offsets[b] : r.seeds;
    const int64_t nk = r.k_offsets[b + 1] - r.k_offsets[b];
    const int64_t rows = of_keys ? nk : nq, tiles = (rows + r.tile - 1) / r.tile;
    std::vector<std::set<int64_t>> touched(tiles);
    for (int64_t i = 0; i < nq; ++i) {
      const KeyRange keys = visible_keys(r.window, i, nq, nk);
      for (int64_t j = keys.first; j < keys.last; ++j)
        touched[(of_keys ? j : i) / r.tile].insert((of_keys ? i : j) / r.other_tile);
    }
    const bool whole = of_keys && nq <= r.whole && nk <= r.whole;
    int64_t all = 0, later = 0;
    for (int64_t t = tiles - 1; t >= 0; --t) {
      const int64_t own =
          r.tile_work + (of_keys ? r.group : 1) * static_cast<int64_t>(touched[t].size());
      all += own;
      later = std::max(later, own);
      if (!whole) work[{b, t}] = of_keys ? later : own;
    }
    if (whole && rows > 0) work[{b, 0}] = all;
  }
  return work;
}

void expect_sorted(const AttentionOrderRequest& r, const std::vector<AttentionItem>& items) {
  for (size_t i = 1; i < items.size(); ++i) {
    const AttentionItem &a = items[i - 1], &b = items[i];
    EXPECT_GE(std::min(a.work, kMostOrderWork), std::min(b.work, kMostOrderWork));
    if (std::min(a.work, kMostOrderWork) == std::min(b.work, kMostOrderWork)) {
      EXPECT_LT(std::pair(a.sequence, a.tile), std::pair(b.sequence, b.tile));
    }
  }
  if (r.pass != AttentionPass::kKeys) return;
  std::map<int32_t, int32_t> last;
  for (const AttentionItem& item : items) {
    const auto [at, first] = last.emplace(item.sequence, item.tile);
    if (first) {
      EXPECT_EQ(item.tile, 0);
    } else {
      EXPECT_EQ(item.tile, at->second + 1);
    }
    at->second = item.tile;
  }
}

TEST(AttentionOrder, EveryTileAppearsOnceWithItsWork) {
  EXPECT_TRUE(rc::check([] {
    const auto c = any_order_case(6, 60);
    const std::vector<AttentionItem> items = attention_order(c->request);
    const auto want = counted(c->request);
    EXPECT_EQ(items.size(), want.size());
    EXPECT_LE(static_cast<int64_t>(items.size()), attention_order_capacity(c->request, c->rows()));
    std::set<std::pair<int64_t, int64_t>> seen;
    for (const AttentionItem& item : items) {
      const std::pair<int64_t, int64_t> at{item.sequence, item.tile};
      EXPECT_TRUE(seen.insert(at).second);
      ASSERT_TRUE(want.contains(at));
      EXPECT_EQ(item.work, want.at(at));
    }
    expect_sorted(c->request, items);
    RC_ASSERT(!::testing::Test::HasFailure());  // the first failure counts, not the smallest
  }));
}

TEST(AttentionOrder, EveryItemHasOneCta) {
  for (const int64_t ctas : {1, 2, 132})
    for (const int64_t count : {0, 1, 131, 132, 133, 1000}) {
      std::vector<int> taken(count);
      for (int64_t round = 0; round <= count / ctas; ++round)
        for (int64_t cta = 0; cta < ctas; ++cta) {
          const int64_t i = order_item(round, cta, ctas);
          if (i < count) ++taken[i];
        }
      EXPECT_EQ(std::count(taken.begin(), taken.end(), 1), count);
    }
}

// The bound: a CTA's share differs from the mean by at most what one round leaves over (the
// heaviest tile of the last, unfinished round) and the sum of differences between neighbouring
// rounds, which zigzag makes alternate: at most one heaviest tile. In all two tiles.
TEST(AttentionOrder, ZigzagBalancesTheBenchmarksDistributions) {
  constexpr int64_t kCtas = 132;
  for (const OrderBatch& batch : benchmark_batches()) {
    OrderCase c(offsets_of(batch.lengths), offsets_of(batch.lengths));
    c.request.window = batch.window;
    for (const auto& [pass, name, whole] : {std::tuple{AttentionPass::kQueries, "queries", 0},
                                            {AttentionPass::kKeys, "keys", 0},
                                            {AttentionPass::kKeys, "keys, one item to 512", 512}}) {
      c.request.pass = pass;
      c.request.whole = whole;
      const auto items = attention_order(c.request);
      const auto work = dealt_work(items, batch.heads, kCtas);
      const double in_order =
          imbalance(dealt_work(attention_items(c.request), batch.heads, kCtas, true));
      std::cout << batch.name << ", " << name << ": " << items.size() << " tiles, max/mean "
                << imbalance(work) << " (in order " << in_order << ")\n";
      double total = 0;
      for (const int64_t w : work) total += static_cast<double>(w);
      EXPECT_LE(imbalance(work), 1 + 2.0 * static_cast<double>(items[0].work) * kCtas / total)
          << batch.name;
      EXPECT_LE(imbalance(work), 1.03) << batch.name;
      EXPECT_LE(imbalance(work), in_order + 1e-12) << batch.name;
    }
  }
}

TEST(AttentionOrder, AMillionTokensAndNothingAtAll) {
  OrderCase c(offsets_of({0, 1'000'000, 3}), offsets_of({0, 1'000'000, 3}));
  c.request.window = kCausal;
  const auto items = attention_order(c.request);
  EXPECT_EQ(items.size(), 7813u + 1);
  EXPECT_LE(imbalance(dealt_work(items, 2, 132)), 1.01);
  OrderCase none({0}, {0});
  none.request.pass = AttentionPass::kKeys;
  EXPECT_TRUE(attention_order(none.request).empty());
  EXPECT_EQ(imbalance(dealt_work({}, 4, 132)), 1.0);
  EXPECT_NE(describe({}, 4, 132).find("0 items on 132 CTAs"), std::string::npos);
}

TEST(AttentionOrder, PrintsItself) {
  OrderCase c(offsets_of({300, 10}), offsets_of({300, 10}));
  c.request.window = kCausal;
  EXPECT_EQ(describe(attention_order(c.request), 1, 2),
            "4 items on 2 CTAs, work 11 in all, busiest 6, max/mean 1.0909\n"
            "CTA 0: work 6; sequence/head/tile:work 0/0/2:4 1/0/0:2\n"
            "CTA 1: work 5; sequence/head/tile:work 0/0/1:3 0/0/0:2\n");
}

TEST(AttentionOrder, NoCtaAndNoRowsAreErrors) {
  OrderCase c(offsets_of({3}), offsets_of({3}));
  EXPECT_THROW(dealt_work(attention_order(c.request), 1, 0), UserError);
  c.request.tile = 0;
  EXPECT_THROW(attention_order(c.request), UserError);
}

}  // namespace
}  // namespace tautline::kernels
