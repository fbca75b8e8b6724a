#include "tautline/kernels/attention_schedule.h"

#include <cmath>
#include <iostream>
#include <map>
#include <set>
#include <tuple>

#include "tautline/base/error.h"

#include "kernels/attention_cases.h"

namespace tautline::kernels {
namespace {

using testing::drawn;
using testing::offsets_of;

AttentionScheduleRequest self(const std::vector<int64_t>& offsets, int64_t heads,
                              AttentionWindow window, AttentionPass pass) {
  AttentionScheduleRequest r;
  r.q_offsets = r.k_offsets = offsets.data();
  r.sequences = static_cast<int64_t>(offsets.size()) - 1;
  r.heads = heads;
  r.window = window;
  r.pass = pass;
  return r;
}

/// Tiles of the other side in which some pair is visible, counted pair by pair.
int64_t counted_work(const AttentionScheduleRequest& r, const AttentionTile& t) {
  const int64_t nq = r.q_offsets ? r.q_offsets[t.sequence + 1] - r.q_offsets[t.sequence] : r.seeds;
  const int64_t nk = r.k_offsets[t.sequence + 1] - r.k_offsets[t.sequence];
  std::set<int64_t> touched;
  for (int64_t i = 0; i < nq; ++i) {
    const KeyRange keys = visible_keys(r.window, i, nq, nk);
    for (int64_t j = keys.first; j < keys.last; ++j) {
      if (r.pass == AttentionPass::kQueries && i / r.tile == t.tile)
        touched.insert(j / r.other_tile);
      if (r.pass == AttentionPass::kKeys && j / r.tile == t.tile) touched.insert(i / r.other_tile);
    }
  }
  const int64_t times = r.pass == AttentionPass::kKeys ? r.group : 1;
  return r.tile_work + times * static_cast<int64_t>(touched.size());
}

void expect_a_partition(const AttentionScheduleRequest& r, const AttentionSchedule& s) {
  std::set<std::tuple<int, int, int>> seen;
  for (const AttentionTile& t : s.tiles) {
    EXPECT_TRUE(seen.emplace(t.sequence, t.head, t.tile).second);
    EXPECT_TRUE(t.head >= 0 && t.head < r.heads);
  }
  int64_t expected = 0;
  for (int64_t b = 0; b < r.sequences; ++b) {
    const bool keys = r.pass == AttentionPass::kKeys;
    const int64_t n = keys || !r.q_offsets ? r.k_offsets[b + 1] - r.k_offsets[b]
                                           : r.q_offsets[b + 1] - r.q_offsets[b];
    const int64_t tiles = ((keys || r.q_offsets ? n : r.seeds) + r.tile - 1) / r.tile;
    expected += tiles * r.heads;
    for (int64_t t = 0; t < tiles; ++t)
      for (int64_t h = 0; h < r.heads; ++h)
        EXPECT_EQ(seen.count({static_cast<int>(b), static_cast<int>(h), static_cast<int>(t)}), 1u);
  }
  EXPECT_EQ(static_cast<int64_t>(s.tiles.size()), expected);
  ASSERT_EQ(static_cast<int64_t>(s.starts.size()), r.ctas + 1);
  EXPECT_EQ(s.starts.front(), 0);
  EXPECT_EQ(s.starts.back(), expected);
  for (int64_t c = 0; c < r.ctas; ++c) {
    int64_t work = 0;
    for (int64_t i = s.starts[c]; i < s.starts[c + 1]; ++i) work += s.tiles[i].work;
    EXPECT_EQ(work, s.work[c]);
  }
}

TEST(AttentionSchedule, EveryTileAppearsOnceWithItsWork) {
  EXPECT_TRUE(rc::check([] {
    const auto in = drawn;
    std::vector<int64_t> q, k;
    for (int64_t b = in(0, 6); b-- > 0;) {
      q.push_back(in(0, 3) ? in(0, 60) : 0);
      k.push_back(in(0, 3) ? in(0, 60) : 0);
    }
    const std::vector<int64_t> qo = offsets_of(q), ko = offsets_of(k);
    AttentionScheduleRequest r;
    r.k_offsets = ko.data();
    r.sequences = static_cast<int64_t>(k.size());
    if (in(0, 2)) {
      r.q_offsets = qo.data();
    } else {
      r.seeds = in(1, 20);
    }
    r.heads = in(0, 3);
    r.window = {in(0, 1) ? -1 : in(0, 30), in(0, 1) ? -1 : in(0, 30)};
    r.pass = in(0, 1) ? AttentionPass::kQueries : AttentionPass::kKeys;
    r.tile = in(1, 16), r.other_tile = in(1, 16), r.group = in(1, 3), r.tile_work = in(0, 2);
    r.ctas = in(1, 9);
    const AttentionSchedule s = attention_schedule(r);
    expect_a_partition(r, s);
    expect_a_partition(r, attention_schedule_in_order(r));
    for (const AttentionTile& t : s.tiles) EXPECT_EQ(t.work, counted_work(r, t));
    for (int64_t c = 0; c < r.ctas; ++c)
      for (int64_t i = s.starts[c]; i + 1 < s.starts[c + 1]; ++i)
        EXPECT_GE(s.tiles[i].work, s.tiles[i + 1].work);
    RC_ASSERT(!::testing::Test::HasFailure());  // the first failure counts, not the smallest
  }));
}

struct Distribution {
  std::string name;
  int64_t sequences, heads;
  AttentionWindow window;
  std::vector<int64_t> lengths;
};

/// The rows of the benchmark: fixed, uniform in [0, L], log-normal with sigma 0.9 clipped to [16,
/// most] and shifted to the mean by its own clipping.
std::vector<Distribution> distributions() {
  std::vector<Distribution> all;
  Random random(3, RandomUse::kSynthetic);
  for (const int64_t length : {256, 512, 1024, 2048}) {
    std::vector<int64_t> uniform;
    for (int i = 0; i < 1152; ++i)
      uniform.push_back(static_cast<int64_t>(random.below(length + 1)));
    const std::string text = std::to_string(length);
    all.push_back({"L " + text, 1152, 4, {}, std::vector<int64_t>(1152, length)});
    all.push_back({"L " + text + " s=.5", 1152, 4, {}, uniform});
  }
  const auto log_normal = [&](int64_t sequences, double mean, int64_t most) {
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < sequences; ++i) {
      const double x = std::exp(0.9 * random.normal()) * mean / std::exp(0.405);
      lengths.push_back(std::clamp<int64_t>(std::llround(x), 16, most));
    }
    return lengths;
  };
  all.push_back({"mean 394 causal H=8", 512, 8, kCausal, log_normal(512, 394, 2048)});
  all.push_back({"mean 394 causal H=4", 512, 4, kCausal, log_normal(512, 394, 2048)});
  all.push_back({"mean 841 causal", 256, 4, kCausal, log_normal(256, 841, 4096)});
  all.push_back({"mean 841", 256, 4, {}, log_normal(256, 841, 4096)});
  all.push_back({"mean 2485 causal", 64, 4, kCausal, log_normal(64, 2485, 8192)});
  return all;
}

// The bound: a CTA's share differs from the mean by at most what one round leaves over (the
// heaviest tile of the last, unfinished round) and the sum of differences between neighbouring
// rounds, which zigzag makes alternate: at most one heaviest tile. In all two tiles.
TEST(AttentionSchedule, ZigzagBalancesTheBenchmarksDistributions) {
  for (const Distribution& d : distributions()) {
    const std::vector<int64_t> offsets = offsets_of(d.lengths);
    for (const AttentionPass pass : {AttentionPass::kQueries, AttentionPass::kKeys}) {
      const AttentionScheduleRequest r = self(offsets, d.heads, d.window, pass);
      const AttentionSchedule s = attention_schedule(r), in_order = attention_schedule_in_order(r);
      const double mean = static_cast<double>(s.total_work()) / 132;
      std::cout << d.name << (pass == AttentionPass::kQueries ? ", queries" : ", keys")
                << ": max/mean " << s.imbalance() << " (in order " << in_order.imbalance() << ")\n";
      EXPECT_LE(s.imbalance(), 1 + 2.0 * s.tiles[0].work / mean) << d.name;
      EXPECT_LE(s.imbalance(), 1.03) << d.name;
      EXPECT_LE(s.imbalance(), in_order.imbalance() + 1e-12) << d.name;
    }
  }
}

TEST(AttentionSchedule, AMillionTokensAndNothingAtAll) {
  const std::vector<int64_t> offsets = offsets_of({0, 1'000'000, 3});
  const auto r = self(offsets, 2, kCausal, AttentionPass::kQueries);
  const AttentionSchedule s = attention_schedule(r);
  EXPECT_EQ(s.tiles.size(), 2u * (7813 + 1));
  EXPECT_LE(s.imbalance(), 1.01);
  const AttentionSchedule none = attention_schedule(self({0}, 2, {}, AttentionPass::kKeys));
  EXPECT_TRUE(none.tiles.empty());
  EXPECT_EQ(none.imbalance(), 1.0);
  EXPECT_NE(describe(none).find("0 tiles on 132 CTAs"), std::string::npos);
}

TEST(AttentionSchedule, PrintsItself) {
  const std::vector<int64_t> offsets = offsets_of({300, 10});
  auto r = self(offsets, 1, kCausal, AttentionPass::kQueries);
  r.ctas = 2;
  EXPECT_EQ(describe(attention_schedule(r)),
            "4 tiles on 2 CTAs, work 11 in all, busiest 6, max/mean 1.0909\n"
            "CTA 0: 2 tiles, work 6; sequence/head/tile:work 0/0/2:4 1/0/0:2\n"
            "CTA 1: 2 tiles, work 5; sequence/head/tile:work 0/0/1:3 0/0/0:2\n");
}

TEST(AttentionSchedule, EvenSharesCoverAllItems) {
  for (const int64_t items : {0, 1, 131, 132, 133, 1000}) {
    int64_t next = 0;
    for (int64_t c = 0; c < 132; ++c) {
      const EvenShare share = even_share(items, 132, c);
      EXPECT_EQ(share.first, next);
      EXPECT_LE(share.last - share.first, (items + 131) / 132);
      next = share.last;
    }
    EXPECT_EQ(next, items);
  }
}

TEST(AttentionSchedule, NoCtaIsAnError) {
  const std::vector<int64_t> offsets = offsets_of({3});
  auto r = self(offsets, 1, {}, AttentionPass::kQueries);
  r.ctas = 0;
  EXPECT_THROW(attention_schedule(r), UserError);
}

}  // namespace
}  // namespace tautline::kernels
