// Merging is a permutation into equally many base batches a step, and it evens the steps out.
#include "tautline/balance/base_batch.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <numeric>

#include <gtest/gtest.h>

#include "tautline/balance/deal.h"
#include "tautline/base/random.h"

namespace tautline::balance {
namespace {

using testing::ElementsAre;

std::vector<double> step_loads(const std::vector<double>& costs, const std::vector<int64_t>& order,
                               int64_t steps) {
  const int64_t per_step = static_cast<int64_t>(costs.size()) / steps;
  std::vector<double> loads(steps, 0.0);
  for (size_t i = 0; i < order.size(); ++i) loads[i / per_step] += costs[order[i]];
  return loads;
}

TEST(MergeBaseBatches, PairsHeaviestWithLightest) {
  const std::vector<double> costs = {4, 1, 3, 2};
  EXPECT_THAT(merge_base_batches(costs, 2), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(merge_base_batches(std::vector<double>{1, 2, 9, 8}, 2), ElementsAre(2, 0, 3, 1));
}

TEST(MergeBaseBatches, IsAPermutationForEveryShape) {
  Random random(3, RandomUse::kSynthetic);
  for (int64_t steps = 1; steps <= 9; ++steps)
    for (int64_t per_step = 0; per_step <= 9; ++per_step) {
      std::vector<double> costs(steps * per_step);
      for (auto& c : costs) c = static_cast<double>(random.below(5));  // many ties
      auto order = merge_base_batches(costs, steps);
      EXPECT_EQ(order, merge_base_batches(costs, steps));
      std::sort(order.begin(), order.end());
      std::vector<int64_t> all(costs.size());
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(order, all) << steps << " x " << per_step;
    }
}

TEST(MergeBaseBatches, EvensOutTheSteps) {
  Random random(4, RandomUse::kSynthetic);
  for (const int64_t per_step : {2, 7, 8}) {
    std::vector<double> costs(16 * per_step);
    for (auto& c : costs) c = 100.0 + 10.0 * random.normal();
    std::vector<int64_t> as_read(costs.size());
    std::iota(as_read.begin(), as_read.end(), 0);
    const double before = max_over_mean(step_loads(costs, as_read, 16)) - 1;
    const double after = max_over_mean(step_loads(costs, merge_base_batches(costs, 16), 16)) - 1;
    EXPECT_LT(after, before / 2) << per_step;
  }
}

// Ranks that take consecutive runs of a step are even too.
TEST(MergeBaseBatches, EvensOutConsecutiveRuns) {
  Random random(5, RandomUse::kSynthetic);
  std::vector<double> costs(64);
  for (auto& c : costs) c = 100.0 + 10.0 * random.normal();
  const auto order = merge_base_batches(costs, 1);
  std::vector<double> runs(8, 0.0), as_read(8, 0.0);
  for (size_t i = 0; i < 64; ++i) {
    runs[i / 8] += costs[order[i]];
    as_read[i / 8] += costs[i];
  }
  EXPECT_LT(max_over_mean(runs) - 1, (max_over_mean(as_read) - 1) / 10);
}

}  // namespace
}  // namespace tautline::balance
