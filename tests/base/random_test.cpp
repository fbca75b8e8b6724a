#include "tautline/base/random.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

namespace tautline {
namespace {

// Known answers of Philox4x32-10 from the authors' Random123 distribution (kat_vectors).
TEST(Philox, KnownAnswers) {
  const Philox4 zeros = philox(0, 0, 0, 0, 0);
  EXPECT_EQ(zeros.v[0], 0x6627e8d5u);
  EXPECT_EQ(zeros.v[1], 0xe169c58du);
  EXPECT_EQ(zeros.v[2], 0xbc57ac4cu);
  EXPECT_EQ(zeros.v[3], 0x9b00dbd8u);
  const Philox4 ones = philox(~uint64_t{0}, ~0u, ~0u, ~0u, ~0u);
  EXPECT_EQ(ones.v[0], 0x408f276du);
  EXPECT_EQ(ones.v[1], 0x41c83b0eu);
  EXPECT_EQ(ones.v[2], 0xa20bc7c6u);
  EXPECT_EQ(ones.v[3], 0x6d5451fdu);
}

TEST(Random, StreamsOfDifferentUsesNeverMeet) {
  Random a(7, RandomUse::kShuffle, 3), b(7, RandomUse::kNegative, 3), c(7, RandomUse::kShuffle, 4);
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i)
    for (Random* stream : {&a, &b, &c}) seen.insert(stream->next64());
  EXPECT_EQ(seen.size(), 3000u);
}

TEST(Random, BelowIsUniform) {
  // Chi-square over 10 cells with 10^5 draws: 9 degrees of freedom, mean 9, sd 4.24; five sd
  // is 30.2.
  Random random(1, RandomUse::kShuffle);
  std::vector<int> cells(10);
  const int draws = 100000;
  for (int i = 0; i < draws; ++i) ++cells[random.below(10)];
  double chi = 0;
  for (int cell : cells) chi += (cell - draws / 10.0) * (cell - draws / 10.0) / (draws / 10.0);
  EXPECT_LT(chi, 30.2);
}

TEST(Random, NormalHasUnitMoments) {
  Random random(2, RandomUse::kParameter);
  const int draws = 100000;
  double sum = 0, squares = 0;
  for (int i = 0; i < draws; ++i) {
    const double x = random.normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_LT(std::abs(sum / draws), 5 / std::sqrt(draws));  // sd of the mean: 1 / sqrt(n)
  EXPECT_LT(std::abs(squares / draws - 1),
            5 * std::sqrt(2.0 / draws));  // sd of the variance: sqrt(2 / n)
}

TEST(Permutation, HoldsEveryIndexOnceAndDependsOnTheStream) {
  for (int64_t n : {0, 1, 2, 1000}) {
    std::vector<int64_t> order = permutation(n, Random(5, RandomUse::kShuffle, 1));
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  }
  EXPECT_NE(permutation(1000, Random(5, RandomUse::kShuffle, 1)),
            permutation(1000, Random(5, RandomUse::kShuffle, 2)));
  EXPECT_EQ(permutation(1000, Random(5, RandomUse::kShuffle, 1)),
            permutation(1000, Random(5, RandomUse::kShuffle, 1)));
}

}  // namespace
}  // namespace tautline
