#include "tautline/timeline/statistics.h"

#include <algorithm>
#include <set>

#include "tautline/timeline/intervals.h"

namespace tautline {
namespace {

constexpr const char* kStep = "step";
constexpr const char* kIdle = "idle";

bool is_wait(const std::string& kind) {
  for (const char* wait : {"all_to_all", "all_reduce", "all_gather", "reduce_scatter", "broadcast",
                           "barrier", "wait", "input"})
    if (kind == wait) return true;
  return false;
}

struct OfStep {
  std::vector<Interval> marked, any, compute, waits;
  double work() const { return length(without(united(compute), united(waits))); }
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
  std::vector<Interval> compute, waits, comm, busy;
  std::map<int64_t, OfStep> steps;

  void add(const TimelineEvent& event) {
    const Interval i{event.start, event.end};
    const bool beside = event.stream == "checkpoint";
    if (event.kind == kStep) {
      if (event.step >= 0) steps[event.step].marked.push_back(i);
      return;
    }
    result.kind_seconds[event.kind] += std::max(0.0, i.end - i.start);
    if (event.kind == kIdle || beside) return;
    busy.push_back(i);
    const bool wait = event.stream == "compute" && is_wait(event.kind);
    const bool work = event.stream == "compute" && !wait;
    if (work) compute.push_back(i);
    if (wait) waits.push_back(i);
    if (event.stream == "comm") comm.push_back(i);
    if (event.step < 0) return;
    steps[event.step].any.push_back(i);
    if (work) steps[event.step].compute.push_back(i);
    if (wait) steps[event.step].waits.push_back(i);
  }

  void finish() {
    std::vector<Interval> spans;
    for (const auto& [step, of_step] : steps) spans.push_back(of_step.span());
    spans = united(std::move(spans));
    const std::vector<Interval> all_compute = without(united(compute), united(waits));
    const std::vector<Interval> all_comm = united(comm);
    result.span_seconds = length(spans);
    result.compute_seconds = length(all_compute);
    result.comm_seconds = length(all_comm);
    result.exposed_comm_seconds = length(without(all_comm, all_compute));
    result.idle_seconds = length(without(spans, united(busy)));
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
      const double load = found->second.work();
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
    const RankStatistics& r = of_rank.result;
    if (r.span_seconds > 0) {
      out.exposed_comm_share +=
          r.exposed_comm_seconds / r.span_seconds / static_cast<double>(ranks.size());
      out.idle_share += r.idle_seconds / r.span_seconds / static_cast<double>(ranks.size());
    }
    out.ranks.push_back(r);
  }
  compare_steps(ranks, out);
  return out;
}

}  // namespace tautline
