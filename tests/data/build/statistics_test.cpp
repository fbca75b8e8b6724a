#include "tautline/data/build/statistics.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "tautline/base/random.h"

namespace tautline::data {
namespace {

TEST(LengthHistogram, QuantilesAreThoseOfASort) {
  // Exact below 65,536; above, a bucket is 1/64 wide and answers with its largest length.
  for (const double mean : {2.0, 9.0, 13.0}) {
    Random random(1, RandomUse::kSynthetic);
    LengthHistogram histogram, halves[2];
    std::vector<int64_t> lengths;
    for (int i = 0; i < 5001; ++i) {
      lengths.push_back(std::max<int64_t>(1, std::llround(std::exp(mean + random.normal()))));
      histogram.add(lengths.back());
      halves[i % 2].add(lengths.back());
    }
    std::sort(lengths.begin(), lengths.end());
    const LengthStatistics statistics = histogram.statistics();
    const auto close = [&](int64_t value, double share) {
      const int64_t exact = lengths[static_cast<size_t>(std::ceil(share * 5001)) - 1];
      if (exact < 65536) {
        EXPECT_EQ(value, exact);
      }
      EXPECT_GE(value, exact);
      EXPECT_LE(static_cast<double>(value), static_cast<double>(exact) * (1 + 1.0 / 64));
    };
    close(statistics.p50, 0.5);
    close(statistics.p90, 0.9);
    close(statistics.p99, 0.99);
    EXPECT_EQ(statistics.minimum, lengths.front());
    EXPECT_EQ(statistics.maximum, lengths.back());
    halves[0].merge(halves[1]);
    EXPECT_EQ(halves[0].statistics().p90, statistics.p90);
    EXPECT_NEAR(halves[0].statistics().log_sigma, statistics.log_sigma, 1e-9);
    if (mean > 2) {  // rounding to whole events moves the logarithm of short ones
      EXPECT_NEAR(statistics.log_mean, mean, 5 / std::sqrt(5001.0));
      EXPECT_NEAR(statistics.log_sigma, 1, 5 / std::sqrt(2 * 5001.0));
    }
  }
}

TEST(LengthHistogram, EmptyIsZero) {
  EXPECT_EQ(LengthHistogram().statistics(), LengthStatistics());
  LengthHistogram one, none;
  one.add(5);
  one.merge(none);
  none.merge(one);
  EXPECT_EQ(none.statistics().p99, 5);
  EXPECT_EQ(none.statistics().log_sigma, 0);
}

TEST(VocabularyStatistics, FindsTheExponentOfAPowerLaw) {
  for (const double exponent : {0.5, 1.0, 1.5}) {
    std::vector<int64_t> counts;
    double total = 0;
    for (int rank = 1; rank <= 3000; ++rank) {
      counts.push_back(std::llround(1e9 * std::pow(rank, -exponent)));
      total += static_cast<double>(counts.back());
    }
    const VocabularyStatistics statistics = vocabulary_statistics(counts);
    EXPECT_EQ(statistics.size, 3000);
    EXPECT_NEAR(statistics.zipf_exponent, exponent, 1e-3);  // counts are rounded: 3e-5 at the least
    EXPECT_DOUBLE_EQ(statistics.top1_share, 1e9 / total);
  }
  EXPECT_EQ(vocabulary_statistics({}), VocabularyStatistics());
  EXPECT_EQ(vocabulary_statistics({7}).top100_share, 1);
  EXPECT_EQ(vocabulary_statistics({7}).zipf_exponent, 0);
}

}  // namespace
}  // namespace tautline::data
