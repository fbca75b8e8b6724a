#include "tautline/timeline/statistics.h"

#include <algorithm>

#include "tautline/timeline/intervals.h"

namespace tautline {
namespace {

bool beside_steps(const std::string& stream) {
  return stream == "evaluation" || stream == "checkpoint";
}

struct OfStep {
  std::vector<Interval> marked, any, work, waits;
  double load() const { return length(without(united(work), united(waits))); }
  Interval span() const {
    const std::vector<Interval>& from = marked.empty() ? any : marked;
    if (from.empty()) return {};
    Interval out = from.front();
    for (const Interval& i : from) out = {std::min(out.start, i.start), std::max(out.end, i.end)};
    return out;
  }
};

struct OfRank {
  RankStatistics result;
  Activity activity;
  std::map<int64_t, OfStep> steps;

  void add(const TimelineEvent& event) {
    const Interval i{event.start, event.end};
    const Use use = use_of(event);
    if (use != Use::kStep) {
      activity.add(event);
      result.kind_seconds[event.kind] += std::max(0.0, i.end - i.start);
    }
    if (event.step < 0 || event.kind == "idle" || beside_steps(event.stream)) return;
    OfStep& step = steps[event.step];
    (use == Use::kStep ? step.marked : step.any).push_back(i);
    if (use == Use::kWork) step.work.push_back(i);
    if (use == Use::kWait) step.waits.push_back(i);
  }

  void finish() {
    for (const auto& [step, of_step] : steps) activity.add_step(of_step.span());
    result.seconds = activity.seconds();
  }
};

using Ranks = std::map<int, OfRank>;

// Over the steps that all ranks have.
void compare_steps(const Ranks& ranks, TimelineStatistics& out) {
  std::vector<double> step_seconds;
  double imbalance = 0;
  int64_t measured = 0;
  if (ranks.empty()) return;
  for (const auto& [step, unused] : ranks.begin()->second.steps) {
    double longest = 0, most = 0, sum = 0;
    bool everywhere = true;
    for (const auto& [rank, of_rank] : ranks) {
      const auto found = of_rank.steps.find(step);
      if (found == of_rank.steps.end()) {
        everywhere = false;
        break;
      }
      const Interval span = found->second.span();
      const double load = found->second.load();
      longest = std::max(longest, span.end - span.start);
      most = std::max(most, load);
      sum += load;
    }
    if (!everywhere) continue;
    step_seconds.push_back(longest);
    if (sum > 0) {
      imbalance += most * static_cast<double>(ranks.size()) / sum;
      ++measured;
    }
  }
  out.steps = static_cast<int64_t>(step_seconds.size());
  out.step_seconds_p50 = quantile(step_seconds, 0.5);
  out.step_seconds_p95 = quantile(step_seconds, 0.95);
  if (measured > 0) out.load_imbalance = imbalance / static_cast<double>(measured);
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  const double part = at - static_cast<double>(below);
  return values[below] * (1 - part) + values[above] * part;
}

TimelineStatistics statistics(const Timeline& timeline) {
  Ranks ranks;
  for (const TimelineEvent& event : timeline.events) ranks[event.rank].add(event);
  TimelineStatistics out;
  for (auto& [rank, of_rank] : ranks) {
    of_rank.result.rank = rank;
    of_rank.finish();
    const StepSeconds& seconds = of_rank.result.seconds;
    const auto count = static_cast<double>(ranks.size());
    out.exposed_comm_share += seconds.exposed_share() / count;
    if (seconds.span > 0) out.idle_share += seconds.idle / seconds.span / count;
    out.ranks.push_back(of_rank.result);
  }
  compare_steps(ranks, out);
  return out;
}

}  // namespace tautline
