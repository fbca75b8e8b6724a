// The quality of a ranking against its definitions, and sums over ranks against one that saw all.
#include "tautline/data/ranking.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace tautline::data {
namespace {

std::vector<double> plus(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

TEST(RankingSums, FollowsTheDefinitions) {
  EXPECT_EQ(rank_of(0, 0), 1);
  EXPECT_EQ(rank_of(3, 1), 4.5);
  RankingSums sums;
  for (const double rank : {1.0, 2.5, 10.0, 10.5, 1000.0}) sums.add(rank);
  EXPECT_DOUBLE_EQ(sums.hr(), 3.0 / 5);
  EXPECT_DOUBLE_EQ(sums.ndcg(), (1 + 1 / std::log2(3.5) + 1 / std::log2(11.0)) / 5);
  EXPECT_DOUBLE_EQ(sums.mrr(), (1 + 0.4 + 0.1 + 1 / 10.5 + 0.001) / 5);
}

TEST(RankingMetrics, GroupsAndSumsOverRanks) {
  RankingMetrics one, other, both;
  one.add(3, 1, true);
  both.add(3, 1, true);
  other.add(12, 8, false);
  both.add(12, 8, false);
  const auto merged = RankingMetrics::of(plus(one.sums(), other.sums()));
  EXPECT_EQ(merged.sums(), both.sums());
  EXPECT_DOUBLE_EQ(merged.all.hr(), 0.5);
  EXPECT_DOUBLE_EQ(merged.unseen.hr(), 1.0);
  EXPECT_DOUBLE_EQ(merged.later.users, 1);
  EXPECT_DOUBLE_EQ(merged.later.ndcg(), 0.5);
  EXPECT_TRUE(std::isnan(RankingMetrics{}.later.ndcg()));
}

TEST(RankingMetrics, MergeAddsAndAnEmptyGroupIsZeroInALog) {
  RankingMetrics one, other;
  one.add(3, 1, false);
  other.add(12, 8, false);
  RankingMetrics both = one;
  both.merge(other);
  const std::vector<double> added = plus(one.sums(), other.sums());
  EXPECT_EQ(both.sums(), added);
  const BaselineMetrics kept = both.baseline();
  EXPECT_DOUBLE_EQ(kept.hr_at_10, 0.5);
  EXPECT_DOUBLE_EQ(kept.ndcg_at_10_unseen, (1 + 1 / std::log2(9.0)) / 2);
  EXPECT_EQ(kept.ndcg_at_10_later, 0);
}

}  // namespace
}  // namespace tautline::data
