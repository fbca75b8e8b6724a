#include "tautline/data/build/statistics.h"

#include <algorithm>
#include <cmath>
#include <xxhash.h>

namespace tautline::data {

size_t LengthHistogram::bucket_of(int64_t length) {
  if (length < kExact) return static_cast<size_t>(length);
  int octave = 16;  // 2^16 = kExact
  while (length >> (octave + 1)) ++octave;
  const int64_t part = (length >> (octave - 6)) & 63;  // 64 parts of an octave
  return static_cast<size_t>(kExact + (octave - 16) * 64 + part);
}

int64_t LengthHistogram::largest_in(size_t bucket) {
  const auto place = static_cast<int64_t>(bucket);
  if (place < kExact) return place;
  const int64_t octave = 16 + (place - kExact) / 64, part = (place - kExact) % 64;
  return ((64 + part + 1) << (octave - 6)) - 1;
}

void LengthHistogram::add(int64_t length) {
  const size_t bucket = bucket_of(length);
  if (counts_.size() <= bucket) counts_.resize(bucket + 1, 0);
  ++counts_[bucket];
  minimum_ = users_ == 0 ? length : std::min(minimum_, length);
  maximum_ = std::max(maximum_, length);
  ++users_;
  events_ += length;
  const double log_length = std::log(static_cast<double>(length));
  log_sum_ += log_length;
  log_squares_ += log_length * log_length;
}

void LengthHistogram::merge(const LengthHistogram& other) {
  if (other.users_ == 0) return;
  if (counts_.size() < other.counts_.size()) counts_.resize(other.counts_.size(), 0);
  for (size_t i = 0; i < other.counts_.size(); ++i) counts_[i] += other.counts_[i];
  minimum_ = users_ == 0 ? other.minimum_ : std::min(minimum_, other.minimum_);
  maximum_ = std::max(maximum_, other.maximum_);
  users_ += other.users_;
  events_ += other.events_;
  log_sum_ += other.log_sum_;
  log_squares_ += other.log_squares_;
}

/// The smallest length that at least this share of users does not exceed.
int64_t LengthHistogram::quantile(double share) const {
  const auto wanted = static_cast<int64_t>(std::ceil(share * static_cast<double>(users_)));
  int64_t seen = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen >= wanted) return std::min(largest_in(i), maximum_);
  }
  return maximum_;
}

LengthStatistics LengthHistogram::statistics() const {
  LengthStatistics out;
  if (users_ == 0) return out;
  const double users = static_cast<double>(users_);
  out.minimum = minimum_;
  out.p50 = quantile(0.5);
  out.p90 = quantile(0.9);
  out.p99 = quantile(0.99);
  out.maximum = maximum_;
  out.mean = static_cast<double>(events_) / users;
  out.log_mean = log_sum_ / users;
  out.log_sigma = std::sqrt(std::max(0.0, log_squares_ / users - out.log_mean * out.log_mean));
  return out;
}

void ShardSummary::merge(const ShardSummary& other) {
  users += other.users;
  events += other.events;
  first_time = std::min(first_time, other.first_time);
  last_time = std::max(last_time, other.last_time);
  common_times += other.common_times;
  lengths.merge(other.lengths);
  digest = XXH3_64bits_withSeed(&other.digest, sizeof other.digest, digest);
  column_digests.resize(other.column_digests.size(), 0);
  for (size_t c = 0; c < column_digests.size(); ++c)
    column_digests[c] =
        XXH3_64bits_withSeed(&other.column_digests[c], sizeof(uint64_t), column_digests[c]);
}

VocabularyStatistics vocabulary_statistics(const std::vector<int64_t>& counts) {
  VocabularyStatistics out;
  out.size = static_cast<int64_t>(counts.size());
  double total = 0, top100 = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    total += static_cast<double>(counts[i]);
    if (i < 100) top100 += static_cast<double>(counts[i]);
  }
  if (total == 0) return out;
  out.top1_share = static_cast<double>(counts[0]) / total;
  out.top100_share = top100 / total;

  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  int64_t last = 0;
  for (double rank = 1; rank <= static_cast<double>(counts.size()); rank *= std::exp2(0.25)) {
    const auto whole = static_cast<int64_t>(rank);
    if (whole == last) continue;
    last = whole;
    const double log_rank = std::log(static_cast<double>(whole));
    const double log_count = std::log(static_cast<double>(counts[static_cast<size_t>(whole) - 1]));
    n += 1, x += log_rank, y += log_count, xx += log_rank * log_rank, xy += log_rank * log_count;
  }
  const double spread = n * xx - x * x;
  if (spread > 0) out.zipf_exponent = -(n * xy - x * y) / spread;
  return out;
}

}  // namespace tautline::data
