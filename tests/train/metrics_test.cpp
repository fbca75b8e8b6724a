// Metrics against their definitions, and sums over ranks against one rank that saw everything.
#include "tautline/train/metrics.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tautline/base/random.h"

namespace tautline::train {
namespace {

std::vector<double> plus(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

struct Examples {
  std::vector<float> logits, labels;
};

Examples draw(int64_t count, uint64_t seed, double coarse) {
  Random random(seed, RandomUse::kSynthetic);
  Examples examples;
  for (int64_t i = 0; i < count; ++i) {
    const bool positive = random.uniform() < 0.2;
    double logit = 2 * random.normal() + (positive ? 1 : -1);
    if (coarse > 0) logit = std::round(logit / coarse) * coarse;  // ties
    examples.logits.push_back(static_cast<float>(logit));
    examples.labels.push_back(positive ? 1.f : 0.f);
  }
  return examples;
}

double auc_by_pairs(const Examples& e) {
  double won = 0, pairs = 0;
  for (size_t i = 0; i < e.labels.size(); ++i)
    for (size_t j = 0; j < e.labels.size(); ++j)
      if (e.labels[i] == 1 && e.labels[j] == 0) {
        won += e.logits[i] > e.logits[j] ? 1 : e.logits[i] == e.logits[j] ? 0.5 : 0;
        ++pairs;
      }
  return won / pairs;
}

TEST(BinaryMetrics, AucIsExactWhereTiesAreTies) {
  for (const int64_t count : {10, 100, 1000}) {
    const Examples e = draw(count, count, 0.25);  // equal or a bin apart
    BinaryMetrics metrics;
    metrics.add(e.logits, e.labels);
    // Sums of multiples of 1/2 below 2^53 are exact; one division on each side.
    EXPECT_DOUBLE_EQ(metrics.auc(), auc_by_pairs(e));
  }
}

TEST(BinaryMetrics, AucStaysWithinItsResolution) {
  const Examples e = draw(2000, 3, 0);
  BinaryMetrics metrics;
  metrics.add(e.logits, e.labels);
  EXPECT_LE(std::abs(metrics.auc() - auc_by_pairs(e)), metrics.auc_resolution() + 1e-15);
  EXPECT_LT(metrics.auc_resolution(), 1e-3);
}

TEST(BinaryMetrics, LogLossAndEntropyFollowTheDefinitions) {
  const Examples e = draw(500, 4, 0);
  BinaryMetrics metrics;
  metrics.add(e.logits, e.labels);
  double loss = 0, positives = 0, prediction = 0;
  for (size_t i = 0; i < e.labels.size(); ++i) {
    const double p = 1 / (1 + std::exp(-static_cast<double>(e.logits[i])));
    loss -= e.labels[i] == 1 ? std::log(p) : std::log(1 - p);
    positives += e.labels[i];
    prediction += p;
  }
  const double n = 500, rate = positives / n;
  // 500 terms, each within a few eps of its size; the sums are below 1000.
  EXPECT_NEAR(metrics.log_loss(), loss / n, 500 * 8 * 2.3e-16);
  EXPECT_NEAR(metrics.normalized_entropy(),
              loss / n / (-rate * std::log(rate) - (1 - rate) * std::log(1 - rate)), 1e-11);
  EXPECT_NEAR(metrics.calibration(), prediction / positives, 1e-12);
}

TEST(BinaryMetrics, PredictingTheBaseRateHasEntropyOne) {
  BinaryMetrics metrics;
  const float logit = static_cast<float>(std::log(0.25 / 0.75));
  for (int i = 0; i < 100; ++i) metrics.add(logit, i % 4 == 0 ? 1.f : 0.f);
  EXPECT_NEAR(metrics.normalized_entropy(), 1, 1e-6);  // the logit is a float
  EXPECT_DOUBLE_EQ(metrics.auc(), 0.5);
}

TEST(BinaryMetrics, ExtremeLogitsAndAbsentLabels) {
  BinaryMetrics metrics;
  metrics.add(1000.f, 1.f);
  metrics.add(-1000.f, 0.f);
  metrics.add(5.f, NAN);
  EXPECT_DOUBLE_EQ(metrics.examples(), 2);
  EXPECT_DOUBLE_EQ(metrics.log_loss(), 0);
  EXPECT_DOUBLE_EQ(metrics.auc(), 1);
  metrics.add(-1000.f, 1.f);
  EXPECT_DOUBLE_EQ(metrics.log_loss(), 1000.0 / 3);
}

TEST(BinaryMetrics, OneClassHasNoAuc) {
  BinaryMetrics metrics;
  EXPECT_TRUE(std::isnan(metrics.auc()));
  EXPECT_TRUE(std::isnan(metrics.log_loss()));
  metrics.add(1.f, 0.f);
  EXPECT_TRUE(std::isnan(metrics.auc()));
  EXPECT_TRUE(std::isnan(metrics.normalized_entropy()));
  EXPECT_FALSE(std::isnan(metrics.log_loss()));
}

TEST(BinaryMetrics, SumsOverRanksAreThoseOfOne) {
  const Examples e = draw(400, 6, 0.25);
  BinaryMetrics whole, parts[3];
  for (size_t i = 0; i < e.labels.size(); ++i) {
    whole.add(e.logits[i], e.labels[i]);
    parts[i % 2].add(e.logits[i], e.labels[i]);  // the third rank has nothing
  }
  const auto merged =
      BinaryMetrics::of(plus(plus(parts[0].sums(), parts[1].sums()), parts[2].sums()));
  EXPECT_EQ(merged.auc(), whole.auc());
  EXPECT_EQ(merged.examples(), whole.examples());
  EXPECT_NEAR(merged.log_loss(), whole.log_loss(), 400 * 2.3e-16 * whole.log_loss());
}

}  // namespace
}  // namespace tautline::train
