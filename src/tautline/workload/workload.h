// The noun Workload: what must be done. `tautline data build` writes its statistics of a log
// (OUT/workload.yaml); with a model it says tables, FLOPs and bytes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tautline {

/// Quantiles and moments of the events of a user.
struct LengthStatistics {
  int64_t minimum = 0, p50 = 0, p90 = 0, p99 = 0, maximum = 0;
  double mean = 0.0;
  double log_mean = 0.0, log_sigma = 0.0;  // of ln(length): the log-normal that fits
  bool operator==(const LengthStatistics&) const = default;
};

/// One categorical column's vocabulary. Id 0 is never an event's id: it stands for unknown.
struct VocabularyStatistics {
  int64_t size = 0;            // distinct values; ids are 1..size
  double zipf_exponent = 0.0;  // slope of log count over log rank
  double top1_share = 0.0, top100_share = 0.0;
  bool operator==(const VocabularyStatistics&) const = default;
};

/// NDCG@10 and HR@10 of a counting model, under the log's holdout (all | unseen | later, as in
/// docs/metrics.md).
struct BaselineMetrics {
  double hr_at_10 = 0, ndcg_at_10 = 0;
  double hr_at_10_unseen = 0, ndcg_at_10_unseen = 0;
  double hr_at_10_later = 0, ndcg_at_10_later = 0;
  std::string setting;  // what was chosen on validation, e.g. "window 10, last 3, norm 0"
  bool operator==(const BaselineMetrics&) const = default;
};

/// A built log: OUT/workload.yaml.
struct LogStatistics {
  std::string name;
  int64_t format = 1;
  int64_t users = 0, events = 0, shards = 0;
  int64_t first_time = 0, last_time = 0;  // seconds
  // Hexadecimal, of the item's vocabulary and of every user's items and times, in the order of the
  // files; empty in logs that were built before they were kept.
  std::string items_digest, histories_digest;
  std::map<std::string, std::string> column_digests;  // of each further column's values, likewise
  LengthStatistics length;
  std::map<std::string, VocabularyStatistics> vocabularies;  // by column, "item" always
  std::vector<std::string> categorical, dense, labels;       // further per-event columns
  std::map<std::string, BaselineMetrics> baselines;          // "popularity", "rules"; may be empty
  bool operator==(const LogStatistics&) const = default;
};

/// One table's demand on a step.
struct TableWork {
  int64_t rows = 0, dim = 0;
  double ids_per_step = 0.0;       // over all ranks
  double state_bytes_per_row = 0;  // optimiser
  bool operator==(const TableWork&) const = default;
};

struct Workload {
  std::string model;
  int64_t batch = 0;  // samples a step, over all ranks
  double tokens_per_step = 0.0;
  std::map<std::string, TableWork> tables;
  double dense_parameters = 0.0;
  double flop_per_step = 0.0;  // GPU.md's formula: 6 P T + 3.5 x 4 H d pairs x layers
  bool operator==(const Workload&) const = default;
};

}  // namespace tautline
