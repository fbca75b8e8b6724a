#include "tautline/data/build/rules.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "tautline/base/error.h"
#include "tautline/data/parallel.h"
#include "tautline/data/ranking.h"

namespace tautline::data {
namespace {

constexpr int kWindows[] = {3, 10};
constexpr int kLast[] = {1, 3, 10};
constexpr double kNorms[] = {0, 0.25, 0.5};
constexpr int64_t kChunks = 64;  // of users: sums are merged in this order on any number of threads
// Weights are kept as multiples of 1/2520 (the least common multiple of 1..10): sums are exact, so
// no order of addition can make or break a tie.
constexpr int64_t kUnit = 2520;

size_t training_end(const Histories& h, int64_t user) {
  const int64_t length =
      h.begin[static_cast<size_t>(user) + 1] - h.begin[static_cast<size_t>(user)];
  return static_cast<size_t>(h.begin[static_cast<size_t>(user) + 1] - (length >= 3 ? 2 : 0));
}

struct Pair {
  uint32_t to;
  uint32_t weight;  // in units
};

/// All pairs by their first item (a counting sort), one after the other.
struct Pairs {
  std::vector<int64_t> begin;  // [items + 2]
  std::vector<Pair> pair;
};

Pairs collect_pairs(const Histories& histories, int64_t items, int window) {
  Pairs pairs;
  pairs.begin.assign(static_cast<size_t>(items) + 2, 0);
  const auto visit = [&](auto&& each) {
    for (int64_t user = 0; user < histories.users(); ++user) {
      const auto from = static_cast<size_t>(histories.begin[static_cast<size_t>(user)]);
      const size_t to = training_end(histories, user);
      for (size_t a = from; a < to; ++a)
        for (size_t d = 1; d <= static_cast<size_t>(window) && a + d < to; ++d)
          each(histories.items[a], histories.items[a + d], static_cast<int64_t>(d));
    }
  };
  visit([&](int64_t a, int64_t, int64_t) { ++pairs.begin[static_cast<size_t>(a) + 1]; });
  std::partial_sum(pairs.begin.begin(), pairs.begin.end(), pairs.begin.begin());
  pairs.pair.resize(static_cast<size_t>(pairs.begin.back()));
  std::vector<int64_t> next(pairs.begin.begin(), pairs.begin.end() - 1);
  visit([&](int64_t a, int64_t b, int64_t d) {
    pairs.pair[static_cast<size_t>(next[static_cast<size_t>(a)]++)] = {
        static_cast<uint32_t>(b), static_cast<uint32_t>(kUnit / d)};
  });
  return pairs;
}

}  // namespace

void Histories::add(const UserView& user) {
  const size_t n = user.items.size();
  items.insert(items.end(), user.items.begin(), user.items.end());
  begin.push_back(static_cast<int64_t>(items.size()));
  later_target.push_back(n >= 3 && user.times[n - 1] > user.times[n - 2]);
  later_validation.push_back(n >= 3 && user.times[n - 2] > user.times[n - 3]);
}

RuleTable count_rules(const Histories& histories, int64_t items, int window, int threads) {
  TAUTLINE_INVARIANT(items < int64_t{1} << 32, "rules over " << items << " items");
  Pairs pairs = collect_pairs(histories, items, window);
  // Each item's pairs are sorted by target and summed in place.
  std::vector<int64_t> kept(static_cast<size_t>(items) + 1, 0);
  const std::atomic<bool> never{false};
  parallel_for(kChunks, threads, never, [&](int64_t chunk) {
    for (int64_t a = chunk; a <= items; a += kChunks) {
      const auto from = pairs.pair.begin() + pairs.begin[static_cast<size_t>(a)];
      const auto to = pairs.pair.begin() + pairs.begin[static_cast<size_t>(a) + 1];
      std::sort(from, to, [](const Pair& x, const Pair& y) { return x.to < y.to; });
      auto out = from;
      for (auto in = from; in != to; ++in) {
        if (out != from && (out - 1)->to == in->to)
          (out - 1)->weight += in->weight;
        else
          *out++ = *in;
      }
      kept[static_cast<size_t>(a)] = out - from;
    }
  });
  RuleTable table;
  table.begin.assign(static_cast<size_t>(items) + 2, 0);
  for (size_t a = 0; a <= static_cast<size_t>(items); ++a) {
    table.begin[a + 1] = table.begin[a] + kept[a];
    for (int64_t i = 0; i < kept[a]; ++i) {
      const Pair& pair = pairs.pair[static_cast<size_t>(pairs.begin[a] + i)];
      table.to.push_back(pair.to);
      table.weight.push_back(static_cast<float>(static_cast<double>(pair.weight) / kUnit));
    }
  }
  return table;
}

namespace {

/// Scores of one user under one (window, norm): popularity as a base that all items have, and what
/// rules add to the few that they touch.
class Scores {
 public:
  explicit Scores(const std::vector<float>& base)
      : base_(base), sorted_(base.begin() + 1, base.end()), score_(base), touched_(base.size(), 0) {
    std::sort(sorted_.begin(), sorted_.end());
  }

  void add(int64_t item, double value) {
    const auto i = static_cast<size_t>(item);
    if (!touched_[i]) {
      touched_[i] = 1;
      list_.push_back(item);
    }
    score_[i] = static_cast<float>(static_cast<double>(score_[i]) + value);
  }

  /// Ranks of `target`: over all items, and over those not in [seen, seen + known).
  std::pair<double, double> ranks(int64_t target, const int64_t* seen, int64_t known) {
    const float own = score_[static_cast<size_t>(target)];
    const auto [low, high] = std::equal_range(sorted_.begin(), sorted_.end(), own);
    int64_t higher = sorted_.end() - high, equal = high - low;
    for (int64_t item : list_) {  // those that rules moved away from their base
      const auto i = static_cast<size_t>(item);
      higher += (score_[i] > own) - (base_[i] > own);
      equal += (score_[i] == own) - (base_[i] == own);
    }
    const double all = rank_of(higher, equal - 1);
    seen_.assign(seen, seen + known);
    std::sort(seen_.begin(), seen_.end());
    seen_.erase(std::unique(seen_.begin(), seen_.end()), seen_.end());
    for (int64_t item : seen_) {
      if (item == target) continue;
      higher -= score_[static_cast<size_t>(item)] > own;
      equal -= score_[static_cast<size_t>(item)] == own;
    }
    return {all, rank_of(higher, equal - 1)};
  }

  void clear() {
    for (int64_t item : list_) {
      score_[static_cast<size_t>(item)] = base_[static_cast<size_t>(item)];
      touched_[static_cast<size_t>(item)] = 0;
    }
    list_.clear();
  }

 private:
  const std::vector<float>& base_;
  std::vector<float> sorted_, score_;
  std::vector<uint8_t> touched_;
  std::vector<int64_t> list_, seen_;
};

struct Popularity {
  std::vector<float> base;                   // [items + 1] breaks ties of rules
  std::array<std::vector<double>, 3> power;  // [norm][items + 1] count^norm + 1e-9
};

Popularity popularity_of(const Histories& histories, int64_t items) {
  std::vector<int64_t> count(static_cast<size_t>(items) + 1, 0);
  int64_t total = 0;
  for (int64_t user = 0; user < histories.users(); ++user)
    for (auto i = static_cast<size_t>(histories.begin[static_cast<size_t>(user)]);
         i < training_end(histories, user); ++i, ++total)
      ++count[static_cast<size_t>(histories.items[i])];
  Popularity out;
  for (const int64_t n : count) {
    out.base.push_back(
        static_cast<float>(static_cast<double>(n) / static_cast<double>(total) * 1e-3));
    for (size_t p = 0; p < 3; ++p)
      out.power[p].push_back(std::pow(static_cast<double>(n), kNorms[p]) + 1e-9);
  }
  return out;
}

using Grid = std::array<RankingMetrics, 9>;  // [norm * 3 + last]

/// All settings of one window on validation, or on test (back 1). One user: for each norm, the last
/// ten events are added one by one, and ranks are taken after the first, third and tenth.
void measure_user(const Histories& histories, const RuleTable& rules, const Popularity& popularity,
                  int64_t user, int back, Scores& scores, Grid& grid) {
  const int64_t from = histories.begin[static_cast<size_t>(user)];
  const int64_t target_at = histories.begin[static_cast<size_t>(user) + 1] - back;
  const int64_t known = target_at - from;
  const int64_t target = histories.items[static_cast<size_t>(target_at)];
  const bool later =
      (back == 1 ? histories.later_target : histories.later_validation)[static_cast<size_t>(user)];
  for (size_t p = 0; p < 3; ++p) {
    int64_t added = 0;
    for (size_t l = 0; l < 3; ++l) {
      for (; added < std::min<int64_t>(kLast[l], known); ++added) {
        const auto a =
            static_cast<size_t>(histories.items[static_cast<size_t>(target_at - 1 - added)]);
        for (int64_t r = rules.begin[a]; r < rules.begin[a + 1]; ++r) {
          const auto place = static_cast<size_t>(r);
          const float part = rules.weight[place] / static_cast<float>(added + 1);
          scores.add(rules.to[place],
                     static_cast<double>(part) /
                         popularity.power[p][static_cast<size_t>(rules.to[place])]);
        }
      }
      const auto [all, unseen] =
          scores.ranks(target, &histories.items[static_cast<size_t>(from)], known);
      grid[p * 3 + l].add(all, unseen, later);
    }
    scores.clear();
  }
}

Grid measure_window(const Histories& histories, const RuleTable& rules,
                    const Popularity& popularity, int back, int threads) {
  std::vector<Grid> parts(static_cast<size_t>(kChunks));
  const std::atomic<bool> never{false};
  const int64_t users = histories.users();
  parallel_for(kChunks, threads, never, [&](int64_t chunk) {
    Scores scores(popularity.base);
    for (int64_t user = chunk * users / kChunks; user < (chunk + 1) * users / kChunks; ++user)
      if (histories.begin[static_cast<size_t>(user) + 1] -
              histories.begin[static_cast<size_t>(user)] >=
          3)
        measure_user(histories, rules, popularity, user, back, scores,
                     parts[static_cast<size_t>(chunk)]);
  });
  Grid grid;
  for (const Grid& part : parts)
    for (size_t i = 0; i < grid.size(); ++i) grid[i].merge(part[i]);
  return grid;
}

}  // namespace

BaselineMetrics measure_rules(const Histories& histories, int64_t items, int threads,
                              const std::function<void(double)>& progress) {
  const Popularity popularity = popularity_of(histories, items);
  double best = -1;
  BaselineMetrics out;
  for (size_t w = 0; w < 2; ++w) {
    const RuleTable rules = count_rules(histories, items, kWindows[w], threads);
    const Grid validation = measure_window(histories, rules, popularity, 2, threads);
    if (progress) progress(0.25 + 0.5 * static_cast<double>(w));
    const Grid test = measure_window(histories, rules, popularity, 1, threads);
    if (progress) progress(0.5 + 0.5 * static_cast<double>(w));
    for (size_t l = 0; l < 3; ++l)
      for (size_t p = 0; p < 3; ++p) {
        const double ndcg = validation[p * 3 + l].baseline().ndcg_at_10;
        if (ndcg <= best) continue;
        best = ndcg;
        out = test[p * 3 + l].baseline();
        char text[64];
        std::snprintf(text, sizeof text, "window %d, last %d, norm %g", kWindows[w], kLast[l],
                      kNorms[p]);
        out.setting = text;
      }
  }
  return out;
}

}  // namespace tautline::data
