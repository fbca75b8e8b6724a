// Sequential rules: a -> b by weighted counts of "b soon after a" (baselines.h says which).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tautline/data/build/shard.h"
#include "tautline/workload/workload.h"

namespace tautline::data {

/// Histories of the users that rules learn from and are measured on.
struct Histories {
  std::vector<int64_t> begin{0};  // [users + 1]
  std::vector<int64_t> items;     // of all users
  // [users] the last event is strictly later than the one before; the same of the one before
  std::vector<uint8_t> later_target;
  std::vector<uint8_t> later_validation;
  void add(const UserView& user);
  int64_t users() const { return static_cast<int64_t>(begin.size()) - 1; }
};

/// Rules of one window in compressed rows: those of item a at [begin[a], begin[a + 1]).
struct RuleTable {
  std::vector<int64_t> begin;  // [items + 2]
  std::vector<int64_t> to;
  std::vector<float> weight;  // sum of 1 / distance
};
RuleTable count_rules(const Histories& histories, int64_t items, int window, int threads);

/// The best of the 18 settings on validation, measured on test; `setting` says which.
BaselineMetrics measure_rules(const Histories& histories, int64_t items, int threads,
                              const std::function<void(double share)>& progress = {});

}  // namespace tautline::data
