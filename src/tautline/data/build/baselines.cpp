#include "tautline/data/build/baselines.h"

#include <algorithm>
#include <atomic>
#include <xxhash.h>

#include "tautline/data/build/rules.h"
#include "tautline/data/build/shard.h"
#include "tautline/data/parallel.h"
#include "tautline/data/ranking.h"

namespace tautline::data {
namespace {

/// Ranks by popularity in O(log items): how many items have more events, how many as many.
class PopularityRank {
 public:
  explicit PopularityRank(const std::vector<int64_t>& counts)  // by id; [0] is not an item
      : counts_(counts), sorted_(counts.begin() + 1, counts.end()) {
    std::sort(sorted_.begin(), sorted_.end());
  }

  void add(const UserView& user, std::vector<int64_t>& seen, RankingMetrics& sums) const {
    const size_t known = user.items.size() - 1;
    const int64_t target = user.items[known], count = counts_[static_cast<size_t>(target)];
    const auto [low, high] = std::equal_range(sorted_.begin(), sorted_.end(), count);
    int64_t higher = sorted_.end() - high, equal = high - low - 1;
    const double all = rank_of(higher, equal);
    seen.assign(user.items.begin(), user.items.begin() + static_cast<int64_t>(known));
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    for (int64_t item : seen) {
      if (item == target) continue;
      higher -= counts_[static_cast<size_t>(item)] > count;
      equal -= counts_[static_cast<size_t>(item)] == count;
    }
    sums.add(all, rank_of(higher, equal), user.times[known] > user.times[known - 1]);
  }

 private:
  const std::vector<int64_t>& counts_;
  std::vector<int64_t> sorted_;
};

/// Training events of a user: all but the last two, or all where nothing is held out.
size_t training_events(size_t length) { return length >= 3 ? length - 2 : length; }

bool sampled(std::string_view token, uint64_t limit) {
  // Another seed than the partitions' hash, or whole shards would be drawn.
  return XXH3_64bits_withSeed(token.data(), token.size(), 0x62617365) <= limit;
}

}  // namespace

std::map<std::string, BaselineMetrics> measure_baselines(
    const std::vector<Location>& shards, const BaselineOptions& options,
    const std::function<void(double)>& progress) {
  const std::atomic<bool> never{false};
  const auto count = static_cast<int64_t>(shards.size());
  const double share = std::min(1.0, static_cast<double>(options.rule_events) /
                                         static_cast<double>(std::max<int64_t>(1, options.events)));
  const uint64_t limit = share >= 1 ? ~uint64_t{0} : static_cast<uint64_t>(share * 0x1p64);

  // Once over the log: popularity of the training events, and the histories that rules learn from.
  std::vector<int64_t> popularity(static_cast<size_t>(options.items) + 1, 0);
  Histories histories;
  for (int64_t s = 0; s < count; ++s) {
    for_each_user(shards[static_cast<size_t>(s)], [&](const UserView& user) {
      for (size_t i = 0; i < training_events(user.items.size()); ++i)
        ++popularity[static_cast<size_t>(user.items[i])];
      if (sampled(user.token, limit)) histories.add(user);
    });
    if (progress) progress(0.2 * static_cast<double>(s + 1) / static_cast<double>(count));
  }

  const PopularityRank rank(popularity);
  std::vector<RankingMetrics> parts(shards.size());
  parallel_for(count, options.threads, never, [&](int64_t s) {
    std::vector<int64_t> seen;
    for_each_user(shards[static_cast<size_t>(s)], [&](const UserView& user) {
      if (user.items.size() >= 3) rank.add(user, seen, parts[static_cast<size_t>(s)]);
    });
  });
  RankingMetrics all;
  for (const RankingMetrics& part : parts) all.merge(part);
  if (all.all.users == 0) return {};
  if (progress) progress(0.4);

  std::map<std::string, BaselineMetrics> out;
  out["popularity"] = all.baseline();
  out["popularity"].setting = "training events of the item";
  out["rules"] = measure_rules(histories, options.items, options.threads, [&](double part) {
    if (progress) progress(0.4 + 0.6 * part);
  });
  if (share < 1) {
    char text[64];
    std::snprintf(text, sizeof text, ", one user in %.0f", 1 / share);
    out["rules"].setting += text;
  }
  return out;
}

}  // namespace tautline::data
