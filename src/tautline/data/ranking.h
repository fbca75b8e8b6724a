// Rank metrics of held-out targets in the three columns: all items, unseen items, later targets.
#pragma once

#include <cmath>
#include <cstdint>

#include "tautline/workload/workload.h"

namespace tautline::data {

/// rank = 1 + higher + equal / 2, where equal does not count the target itself.
inline double rank_of(int64_t higher, int64_t equal) {
  return 1.0 + static_cast<double>(higher) + static_cast<double>(equal) / 2;
}

struct RankSums {
  int64_t users = 0, later_users = 0;
  BaselineMetrics sums;  // sums over users until mean() divides

  void add(double all, double unseen, bool later) {
    ++users;
    later_users += later;
    add(all, sums.hr_at_10, sums.ndcg_at_10);
    add(unseen, sums.hr_at_10_unseen, sums.ndcg_at_10_unseen);
    if (later) add(all, sums.hr_at_10_later, sums.ndcg_at_10_later);
  }

  void merge(const RankSums& other) {
    users += other.users;
    later_users += other.later_users;
    sums.hr_at_10 += other.sums.hr_at_10;
    sums.ndcg_at_10 += other.sums.ndcg_at_10;
    sums.hr_at_10_unseen += other.sums.hr_at_10_unseen;
    sums.ndcg_at_10_unseen += other.sums.ndcg_at_10_unseen;
    sums.hr_at_10_later += other.sums.hr_at_10_later;
    sums.ndcg_at_10_later += other.sums.ndcg_at_10_later;
  }

  /// 0 where there are no users.
  BaselineMetrics mean() const {
    BaselineMetrics out = sums;
    const double n = users > 0 ? static_cast<double>(users) : 1;
    const double later = later_users > 0 ? static_cast<double>(later_users) : 1;
    out.hr_at_10 /= n;
    out.ndcg_at_10 /= n;
    out.hr_at_10_unseen /= n;
    out.ndcg_at_10_unseen /= n;
    out.hr_at_10_later /= later;
    out.ndcg_at_10_later /= later;
    return out;
  }

 private:
  static void add(double rank, double& hits, double& gain) {
    if (rank > 10) return;
    hits += 1;
    gain += 1 / std::log2(rank + 1);
  }
};

}  // namespace tautline::data
