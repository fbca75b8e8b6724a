#include "tautline/train/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tautline/base/error.h"

namespace tautline::train {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

int bin_of(double logit) {
  constexpr double kPerUnit = BinaryMetrics::kBins / (2 * BinaryMetrics::kRange);
  const double bin = std::floor((logit + BinaryMetrics::kRange) * kPerUnit);
  return static_cast<int>(std::clamp<double>(bin, 0, BinaryMetrics::kBins - 1));
}

}  // namespace

void BinaryMetrics::add(float logit, float label) {
  if (std::isnan(label)) return;
  const double z = logit, y = label;
  // -y log p - (1 - y) log(1 - p), without overflow for any logit.
  loss_ += std::max(z, 0.0) - z * y + std::log1p(std::exp(-std::abs(z)));
  prediction_ += 1 / (1 + std::exp(-z));
  const int bin = std::isnan(z) ? 0 : bin_of(z);
  positives_[bin] += y;
  negatives_[bin] += 1 - y;
}

void BinaryMetrics::add(std::span<const float> logits, std::span<const float> labels) {
  TAUTLINE_INVARIANT(logits.size() == labels.size(),
                     "logits " << logits.size() << ", labels " << labels.size());
  for (size_t i = 0; i < logits.size(); ++i) add(logits[i], labels[i]);
}

double BinaryMetrics::positive_count() const {
  return std::accumulate(positives_.begin(), positives_.end(), 0.0);
}

double BinaryMetrics::negative_count() const {
  return std::accumulate(negatives_.begin(), negatives_.end(), 0.0);
}

double BinaryMetrics::log_loss() const { return examples() > 0 ? loss_ / examples() : kNaN; }

double BinaryMetrics::normalized_entropy() const {
  const double p = positive_count() / examples();
  if (!(p > 0 && p < 1)) return kNaN;
  return log_loss() / (-p * std::log(p) - (1 - p) * std::log1p(-p));
}

double BinaryMetrics::auc() const {
  double below = 0, won = 0;  // negatives in lower bins; pairs that positives win
  for (int bin = 0; bin < kBins; ++bin) {
    won += positives_[bin] * (below + 0.5 * negatives_[bin]);
    below += negatives_[bin];
  }
  const double pairs = positive_count() * below;
  return pairs > 0 ? won / pairs : kNaN;
}

double BinaryMetrics::auc_resolution() const {
  double tied = 0;
  for (int bin = 0; bin < kBins; ++bin) tied += 0.5 * positives_[bin] * negatives_[bin];
  const double pairs = positive_count() * negative_count();
  return pairs > 0 ? tied / pairs : kNaN;
}

double BinaryMetrics::calibration() const {
  return positive_count() > 0 ? prediction_ / positive_count() : kNaN;
}

std::vector<double> BinaryMetrics::sums() const {
  std::vector<double> sums = positives_;
  sums.insert(sums.end(), negatives_.begin(), negatives_.end());
  sums.insert(sums.end(), {loss_, prediction_});
  return sums;
}

BinaryMetrics BinaryMetrics::of(std::span<const double> sums) {
  TAUTLINE_INVARIANT(sums.size() == 2 * kBins + 2, "sums " << sums.size());
  BinaryMetrics metrics;
  std::copy_n(sums.begin(), kBins, metrics.positives_.begin());
  std::copy_n(sums.begin() + kBins, kBins, metrics.negatives_.begin());
  metrics.loss_ = sums[2 * kBins];
  metrics.prediction_ = sums[2 * kBins + 1];
  return metrics;
}

}  // namespace tautline::train
