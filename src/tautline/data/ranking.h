// Quality of a ranking as sums over users: the one definition, for counting models, trained models
// and the sums over ranks.
//
// The held-out item's rank among all items is 1 + higher + equal / 2, counting the items with a
// higher and with an equal score (the target itself is not counted). HR@K is the share of users
// with rank <= K; NDCG@K the mean of 1 / log2(rank + 1) over ranks <= K and 0 beyond (one relevant
// item, so the ideal is 1; Jarvelin and Kekalainen, ACM TOIS 20(4), 2002, section 2.2); MRR the
// mean of 1 / rank, not cut. docs/metrics.md has the three groups.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tautline/base/error.h"
#include "tautline/workload/workload.h"

namespace tautline::data {

inline double rank_of(int64_t higher, int64_t equal) {
  return 1.0 + static_cast<double>(higher) + 0.5 * static_cast<double>(equal);
}

/// Over a group of users. Exact: counts below 2^53 and two sums of fractions.
struct RankingSums {
  static constexpr double kCut = 10;
  double users = 0, hits = 0, gains = 0, reciprocals = 0;

  void add(double rank) {
    users += 1;
    reciprocals += 1 / rank;
    if (!(rank <= kCut)) return;
    hits += 1;
    gains += 1 / std::log2(rank + 1);
  }
  void merge(const RankingSums& other) {
    users += other.users;
    hits += other.hits;
    gains += other.gains;
    reciprocals += other.reciprocals;
  }
  double hr() const { return mean(hits); }
  double ndcg() const { return mean(gains); }
  double mrr() const { return mean(reciprocals); }

 private:
  /// NaN where there are no users.
  double mean(double sum) const {
    return users > 0 ? sum / users : std::numeric_limits<double>::quiet_NaN();
  }
};

/// all: all items. unseen: items of the known history left out of the ranking. later: all items,
/// only users whose target is strictly later than their last known event.
struct RankingMetrics {
  RankingSums all, unseen, later;

  void add(double rank_all, double rank_unseen, bool is_later) {
    all.add(rank_all);
    unseen.add(rank_unseen);
    if (is_later) later.add(rank_all);
  }
  void merge(const RankingMetrics& other) {
    all.merge(other.all);
    unseen.merge(other.unseen);
    later.merge(other.later);
  }
  /// 12 numbers to be summed over ranks, and back.
  std::vector<double> sums() const {
    std::vector<double> sums;
    for (const RankingSums* g : {&all, &unseen, &later})
      sums.insert(sums.end(), {g->users, g->hits, g->gains, g->reciprocals});
    return sums;
  }
  static RankingMetrics of(std::span<const double> sums) {
    TAUTLINE_INVARIANT(sums.size() == 12, "sums " << sums.size());
    RankingMetrics metrics;
    for (RankingSums* g : {&metrics.all, &metrics.unseen, &metrics.later}) {
      *g = {sums[0], sums[1], sums[2], sums[3]};
      sums = sums.subspan(4);
    }
    return metrics;
  }
  /// As a built log keeps them: 0 for a group without users.
  BaselineMetrics baseline() const {
    const auto finite = [](double mean) { return std::isnan(mean) ? 0.0 : mean; };
    BaselineMetrics out;
    out.hr_at_10 = finite(all.hr());
    out.ndcg_at_10 = finite(all.ndcg());
    out.hr_at_10_unseen = finite(unseen.hr());
    out.ndcg_at_10_unseen = finite(unseen.ndcg());
    out.hr_at_10_later = finite(later.hr());
    out.ndcg_at_10_later = finite(later.ndcg());
    return out;
  }
};

}  // namespace tautline::data
