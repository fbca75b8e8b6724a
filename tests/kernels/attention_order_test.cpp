#include "tautline/kernels/attention_order.h"

#include <iostream>
#include <map>
#include <set>

#include "tautline/base/error.h"

#include "kernels/order_cases.h"

namespace tautline::kernels {
namespace {

using namespace testing;

/// Work of each (sequence, tile) of a paired order: runs are taken from both ends in turn.
std::map<std::pair<int64_t, int64_t>, int64_t> counted_in_pairs(const AttentionOrderRequest& r) {
  std::map<std::pair<int64_t, int64_t>, int64_t> work;
  AttentionOrderRequest runs = r;
  runs.pair_group = 0, runs.tile = r.tile / 2;
  std::map<int64_t, std::vector<AttentionItem>> of;
  for (const AttentionItem& run : attention_items(runs)) of[run.sequence].push_back(run);
  for (const auto& [b, all] : of) {
    const int64_t nq = r.q_offsets ? r.q_offsets[b + 1] - r.q_offsets[b] : r.seeds;
    const auto weighed = [&](const AttentionItem& run) {
      int64_t groups = 0;
      for (int64_t i = run.tile * runs.tile; i < std::min(nq, (run.tile + 1) * runs.tile);
           i += r.pair_group)
        ++groups;
      return run.work * (1 + groups);
    };
    for (size_t t = 0; 2 * t < all.size(); ++t) {
      const size_t last = all.size() - 1 - t;
      work[{b, t}] = weighed(all[t]) + (last > t ? weighed(all[last]) : 0);
    }
  }
  return work;
}

/// Work of each (sequence, tile), counted pair by pair: tiles of the other side in which some pair
/// is visible. In the keys' pass moderate sequences are one item.
std::map<std::pair<int64_t, int64_t>, int64_t> counted(const AttentionOrderRequest& r) {
  std::map<std::pair<int64_t, int64_t>, int64_t> work;
  const bool of_keys = r.pass == AttentionPass::kKeys;
  if (!of_keys && r.pair_group > 0) return counted_in_pairs(r);
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
    const bool few = 2 * nq <= r.whole && nk <= 64 * r.whole;
    const bool whole = of_keys && nq <= r.whole && (few || nq * nk <= r.whole * r.whole);
    int64_t all = 0;
    for (int64_t t = tiles - 1; t >= 0; --t) {
      const int64_t own =
          r.tile_work + (of_keys ? r.group : 1) * static_cast<int64_t>(touched[t].size());
      all += own;
      if (!whole) work[{b, t}] = own;
    }
    if (whole && rows > 0) work[{b, 0}] = all;
  }
  return work;
}

int64_t told_apart(int64_t work) { return std::min(work, kMostOrderWork); }

void expect_by_falling_work(const std::vector<AttentionItem>& items) {
  for (size_t i = 1; i < items.size(); ++i) {
    const AttentionItem &a = items[i - 1], &b = items[i];
    EXPECT_GE(told_apart(a.work), told_apart(b.work));
    if (told_apart(a.work) == told_apart(b.work)) {
      EXPECT_LT(std::pair(a.sequence, a.tile), std::pair(b.sequence, b.tile));
    }
  }
}

/// Four sequences at a time: the first tiles of each, then the second ones, ...; the heaviest four first.
void expect_in_turns(const std::vector<AttentionItem>& items) {
  std::map<int32_t, std::pair<int64_t, int32_t>> sequences;  // heaviest tile, number
  for (const AttentionItem& item : items) {
    auto& [work, tiles] = sequences[item.sequence];
    work = std::max(work, told_apart(item.work));
    EXPECT_EQ(item.tile, tiles++);
  }
  std::vector<int32_t> sorted;
  for (const auto& [sequence, what] : sequences) sorted.push_back(sequence);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](int32_t a, int32_t b) { return sequences[a].first > sequences[b].first; });
  size_t at = 0;
  for (size_t group = 0; group < sorted.size(); group += 4) {
    const size_t end = std::min(sorted.size(), group + 4);
    int32_t most = 0;
    for (size_t i = group; i < end; ++i) most = std::max(most, sequences[sorted[i]].second);
    for (int32_t tile = 0; tile < most; ++tile)
      for (size_t i = group; i < end; ++i) {
        if (tile >= sequences[sorted[i]].second) continue;
        ASSERT_LT(at, items.size());
        EXPECT_EQ(items[at].sequence, sorted[i]);
        EXPECT_EQ(items[at++].tile, tile);
      }
  }
  EXPECT_EQ(at, items.size());
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
    c->request.pass == AttentionPass::kKeys ? expect_in_turns(items)
                                            : expect_by_falling_work(items);
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

// The bounds. Zigzag: a CTA's share differs from the mean by at most what one round leaves over (the
// heaviest tile of the last, unfinished round) and the sum of differences between neighbouring
// rounds, which zigzag makes alternate: at most one heaviest tile. In all two tiles. Next free: when
// the busiest CTA took its last tile, all others had as much work as it (Graham): one tile.
TEST(AttentionOrder, TheBenchmarksDistributionsAreBalanced) {
  constexpr int64_t kCtas = 132;
  for (const OrderBatch& batch : benchmark_batches()) {
    OrderCase c(offsets_of(batch.lengths), offsets_of(batch.lengths));
    c.request.window = batch.window;
    for (const auto& [pass, name, whole] : {std::tuple{AttentionPass::kQueries, "queries", 0},
                                            {AttentionPass::kKeys, "keys", 0},
                                            {AttentionPass::kKeys, "keys, one item to 256", 256}}) {
      c.request.pass = pass;
      c.request.whole = whole;
      const bool queries = pass == AttentionPass::kQueries;
      const auto items = attention_order(c.request);
      const auto work =
          dealt_work(items, batch.heads, kCtas, queries ? Dealing::kZigzag : Dealing::kNextFree);
      const double runs =
          imbalance(dealt_work(attention_items(c.request), batch.heads, kCtas, Dealing::kRuns));
      std::cout << batch.name << ", " << name << ": " << items.size() << " tiles, max/mean "
                << imbalance(work) << " (in order " << runs << ")\n";
      int64_t total = 0, heaviest = 0;
      for (const int64_t w : work) total += w;
      for (const AttentionItem& item : items) heaviest = std::max(heaviest, item.work);
      EXPECT_LE(imbalance(work), 1 + static_cast<double>((queries ? 2 : 1) * heaviest * kCtas) /
                                         static_cast<double>(total))
          << batch.name;
      EXPECT_LE(imbalance(work), 1.03) << batch.name;
      EXPECT_LE(imbalance(work), runs + 1e-12) << batch.name;
    }
  }
}

// The same bound for the forward's order, whose tiles are fewer and larger.
TEST(AttentionOrder, PairsBalanceToo) {
  constexpr int64_t kCtas = 132;
  for (const OrderBatch& batch : benchmark_batches()) {
    OrderCase c(offsets_of(batch.lengths), offsets_of(batch.lengths));
    c.request.window = batch.window;
    c.request.tile = 384, c.request.other_tile = c.request.pair_group = 64;
    const auto items = attention_order(c.request);
    const auto work = dealt_work(items, batch.heads, kCtas);
    double total = 0;
    for (const int64_t w : work) total += static_cast<double>(w);
    std::cout << batch.name << ": " << items.size() << " tiles, max/mean " << imbalance(work)
              << "\n";
    EXPECT_LE(imbalance(work), 1 + 2.0 * static_cast<double>(items[0].work) * kCtas / total)
        << batch.name;
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
  c.request.tile = 1;
  c.request.pass = AttentionPass::kKeys;
  c.request.tile_work = 0;
  EXPECT_THROW(attention_order(c.request), UserError);
}

}  // namespace
}  // namespace tautline::kernels
