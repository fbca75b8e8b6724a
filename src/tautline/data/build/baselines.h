// Counting models that every trained model is printed beside: popularity and sequential rules.
//
// Protocol (leave last out): per user in order of time, the last event is the test target, the one
// before it the validation target, the rest trains; users with fewer than three events only train.
// All items of the log are ranked: rank = 1 + higher + equal / 2. Columns: all | items of the known
// history removed (unless it is the target) | only targets strictly later than the last known
// event.
//
// Popularity: score = training events of the item.
// Rules (window W, last K, norm p): a training event b at distance d <= W after a adds 1/d to the
// rule a -> b; the score of b adds rule(a -> b) / k / count(b)^p over the user's last K events a,
// k = 1 for the latest; where that ties, popularity decides. W in {3, 10}, K in {1, 3, 10}, p in
// {0, 0.25, 0.5} are chosen by validation NDCG@10.
//
// Memory: 8 bytes an item for popularity. Rules hold sampled histories and their pairs: about 150
// bytes a sampled event, at most `events` of them; users are drawn by a hash of their token.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tautline/data/uri.h"
#include "tautline/workload/workload.h"

namespace tautline::data {

struct BaselineOptions {
  int64_t items = 0;   // size of the item vocabulary
  int64_t events = 0;  // of the whole log
  int64_t rule_events = 2'000'000;
  int threads = 1;
};

/// "popularity" and "rules", from the shards of a log that is being built. Empty where no user has
/// three events.
std::map<std::string, BaselineMetrics> measure_baselines(
    const std::vector<Location>& shards, const BaselineOptions& options,
    const std::function<void(double share)>& progress = {});

}  // namespace tautline::data
