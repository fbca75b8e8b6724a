// The deal is a partition, even, deterministic, and near the best balance possible.
#include "tautline/balance/deal.h"

#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <numeric>

#include <gtest/gtest.h>

#include "tautline/base/random.h"

namespace tautline::balance {
namespace {

using testing::ElementsAre;

std::vector<int64_t> lognormal_lengths(int64_t samples, uint64_t seed) {
  Random random(seed, RandomUse::kSynthetic);
  std::vector<int64_t> lengths(samples);
  for (auto& n : lengths)
    n = std::clamp<int64_t>(std::llround(std::exp(5.6 + 0.9 * random.normal())), 1, 2048);
  return lengths;
}

TEST(DealInOrder, RunsDifferByAtMostOne) {
  EXPECT_THAT(deal_in_order(7, 3), ElementsAre(0, 0, 1, 1, 2, 2, 2));
  EXPECT_THAT(deal_in_order(2, 4), ElementsAre(1, 3));  // two ranks stay empty
  EXPECT_THAT(deal_in_order(0, 4), ElementsAre());
}

TEST(DealByLength, LongestFirstToTheLightestRank) {
  const std::vector<int64_t> lengths = {1, 2, 3, 4, 5};
  // 5 -> 0; 4 -> 1; 3 -> 1 (7); 2 -> 0 (7); 1: equal loads and counts -> 0.
  EXPECT_THAT(deal_by_length(lengths, 2), ElementsAre(0, 0, 1, 1, 0));
}

TEST(DealByLength, EqualLengthsAreSpreadEvenly) {
  for (const int64_t samples : {0, 1, 7, 8, 9, 64, 65}) {
    const std::vector<int64_t> lengths(samples, 10);
    std::vector<int64_t> count(8, 0);
    for (const int32_t rank : deal_by_length(lengths, 8)) ++count[rank];
    const auto [low, high] = std::minmax_element(count.begin(), count.end());
    EXPECT_LE(*high - *low, 1) << samples;
  }
}

TEST(DealByLength, SamplesThatWeighNothingAreSpreadToo) {
  const std::vector<int64_t> lengths(6, 0);
  EXPECT_THAT(deal_by_length(lengths, 3), ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST(DealByLength, FewerSamplesThanRanksLeavesRanksEmpty) {
  const std::vector<int64_t> lengths = {3, 9};
  EXPECT_THAT(deal_by_length(lengths, 4), ElementsAre(1, 0));
}

// Graham's theorem, against a lower bound of the optimum: a violation would be a wrong deal.
TEST(DealByLength, StaysWithinGrahamsBound) {
  for (uint64_t seed = 1; seed <= 20; ++seed)
    for (const int ranks : {1, 2, 3, 8, 64})
      for (const int64_t samples : {1, 8, 63, 64, 65, 600})
        for (const Cost cost : {Cost{}, Cost{1.0, 0.01}}) {
          const auto lengths = lognormal_lengths(samples, seed);
          std::vector<double> costs;
          for (const int64_t n : lengths) costs.push_back(cost.of(n));
          const auto loads = rank_loads(lengths, deal_by_length(lengths, ranks, cost), ranks, cost);
          const double maximum = *std::max_element(loads.begin(), loads.end());
          // On few samples LPT meets the optimum only within its bound times the true optimum,
          // which may lie above the lower bound; Graham's proof gives mean + (1 - 1/W) * smallest
          // item of the heaviest rank <= mean + heaviest, always.
          const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / ranks;
          EXPECT_LE(maximum, mean + *std::max_element(costs.begin(), costs.end()) + 1e-6);
          EXPECT_GE(maximum, least_maximum(costs, ranks) * (1 - 1e-12));
          if (samples >= 8 * ranks) {  // with many samples a rank it is near the bound
            EXPECT_LE(maximum, 4.0 / 3.0 * least_maximum(costs, ranks));
          }
        }
}

// The brute-force optimum of small instances: the bound never lies above it, LPT within 4/3 of it.
TEST(LeastMaximum, BoundsTheTrueOptimum) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed, RandomUse::kSynthetic);
    const int ranks = 2 + static_cast<int>(random.below(2));
    const int64_t samples = 1 + static_cast<int64_t>(random.below(8));
    std::vector<int64_t> lengths(samples);
    for (auto& n : lengths) n = 1 + static_cast<int64_t>(random.below(12));
    double best = 1e300;
    std::vector<int32_t> deal(samples, 0);
    for (int64_t code = 0; code < std::llround(std::pow(ranks, samples)); ++code) {
      for (int64_t i = 0, c = code; i < samples; ++i, c /= ranks)
        deal[i] = static_cast<int32_t>(c % ranks);
      const auto loads = rank_loads(lengths, deal, ranks);
      best = std::min(best, *std::max_element(loads.begin(), loads.end()));
    }
    const std::vector<double> costs(lengths.begin(), lengths.end());
    EXPECT_LE(least_maximum(costs, ranks), best);
    const auto loads = rank_loads(lengths, deal_by_length(lengths, ranks), ranks);
    EXPECT_LE(*std::max_element(loads.begin(), loads.end()),
              (4.0 / 3.0 - 1.0 / (3.0 * ranks)) * best + 1e-9);
  }
}

TEST(LeastMaximum, KnowsThatTwoHeavySamplesShareARank) {
  EXPECT_DOUBLE_EQ(least_maximum(std::vector<double>{6, 5, 5, 1}, 2), 10.0);
  EXPECT_DOUBLE_EQ(least_maximum(std::vector<double>{9, 1, 1}, 2), 9.0);
  EXPECT_DOUBLE_EQ(least_maximum(std::vector<double>{}, 2), 0.0);
}

TEST(DealByLength, BalancesWhatOrderDoesNot) {
  const auto lengths = lognormal_lengths(8 * 64, 5);
  const double before = max_over_mean(rank_loads(lengths, deal_in_order(512, 8), 8));
  const double after = max_over_mean(rank_loads(lengths, deal_by_length(lengths, 8), 8));
  EXPECT_GT(before, 1.05);
  EXPECT_LT(after, 1.001);
}

TEST(MaxOverMean, NothingIsBalanced) {
  EXPECT_DOUBLE_EQ(max_over_mean(std::vector<double>{0, 0}), 1.0);
  EXPECT_DOUBLE_EQ(max_over_mean(std::vector<double>{3, 1}), 1.5);
}

}  // namespace
}  // namespace tautline::balance
