// Quality metrics as sums: each rank adds what it has seen, an all-reduce adds the sums of all
// ranks, and every rank reads the same metrics from them. No torch here. Ranking: data/ranking.h.
//
// Binary labels: AUC and normalised entropy (He et al., "Practical lessons from predicting clicks
// on ads at Facebook", ADKDD 2014, section 3).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tautline::train {

/// Of one binary head. AUC counts, for every pair of a positive and a negative, 1 where the
/// positive has the higher score and 1/2 where they tie. Scores are logits, and logits in one bin
/// of width 1/1024 (all below -32 in one, all above 32 in one) tie: so it is exact but for pairs
/// that share a bin, and auc_resolution() bounds the error. One add is O(1), the sums are 1 MiB.
class BinaryMetrics {
 public:
  static constexpr int kBins = 1 << 16;
  static constexpr double kRange = 32;

  BinaryMetrics() : positives_(kBins, 0.0), negatives_(kBins, 0.0) {}

  /// label 0 or 1; a NaN label is no example. A NaN logit makes the entropy NaN.
  void add(float logit, float label);
  void add(std::span<const float> logits, std::span<const float> labels);

  double examples() const { return positive_count() + negative_count(); }
  double positives() const { return positive_count(); }
  /// Mean log loss in nats.
  double log_loss() const;
  /// Mean log loss over the entropy of the base rate: 1 is what predicting the base rate gives,
  /// less is better. NaN where all labels are equal.
  double normalized_entropy() const;
  /// NaN where all labels are equal.
  double auc() const;
  /// The exact AUC lies within auc() +- auc_resolution().
  double auc_resolution() const;
  /// Mean prediction over the base rate: 1 is calibrated. NaN without positives.
  double calibration() const;

  /// 2 kBins + 2 numbers to be summed over ranks, and back.
  std::vector<double> sums() const;
  static BinaryMetrics of(std::span<const double> sums);

 private:
  double positive_count() const;
  double negative_count() const;

  std::vector<double> positives_, negatives_;  // examples by bin of the logit
  double loss_ = 0, prediction_ = 0;
};

}  // namespace tautline::train
