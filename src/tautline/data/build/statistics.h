// Statistics of a log in bounded memory: lengths, times, skew of ids.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "tautline/workload/workload.h"

namespace tautline::data {

/// Counts of lengths: exact below kExact, then in buckets 1/64 wide (relative). 600 kB at most,
/// whatever the log.
class LengthHistogram {
 public:
  void add(int64_t length);
  void merge(const LengthHistogram& other);
  LengthStatistics statistics() const;

 private:
  static constexpr int64_t kExact = 1 << 16;
  static size_t bucket_of(int64_t length);
  static int64_t largest_in(size_t bucket);
  int64_t quantile(double share) const;

  std::vector<int64_t> counts_;  // by bucket, as long as needed
  int64_t users_ = 0, events_ = 0, minimum_ = 0, maximum_ = 0;
  double log_sum_ = 0.0, log_squares_ = 0.0;
};

/// What a shard or a whole log holds.
struct ShardSummary {
  int64_t users = 0, events = 0;
  int64_t first_time = std::numeric_limits<int64_t>::max();  // seconds
  int64_t last_time = std::numeric_limits<int64_t>::min();
  int64_t common_times = 0;  // events at ShardSchema::common_ticks
  LengthHistogram lengths;
  uint64_t digest = 0;                   // of the users' names, items and times
  std::vector<uint64_t> column_digests;  // of each further column's values: categorical, dense
  /// `other` follows this one: the digests depend on the order.
  void merge(const ShardSummary& other);
};

/// counts: of each value, in descending order. The exponent is minus the slope of ln count over ln
/// rank, by least squares at ranks spaced by 2^(1/4), so that each octave of ranks weighs the same.
VocabularyStatistics vocabulary_statistics(const std::vector<int64_t>& counts);

}  // namespace tautline::data
