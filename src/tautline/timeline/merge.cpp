#include "tautline/timeline/merge.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace tautline {
namespace {

// A collective: its group and its number there.
using Collective = std::pair<std::string, int64_t>;

struct Mean {
  double sum = 0;
  int64_t count = 0;
  void add(double value) { sum += value, ++count; }
  double value() const { return sum / static_cast<double>(count); }
};
using Ends = std::map<Collective, Mean>;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

/// Calls `visit(collective, end)` for each collective of a part, shifted.
template <class Visit>
void for_each_end(const TimelinePart& part, const Visit& visit) {
  for (const TimelineEvent& event : part.timeline.events)
    if (event.sequence >= 0) visit(Collective{event.group, event.sequence}, event.end + part.shift);
}

/// Shifts the parts of `clock` to what is known, and adds their ends to it. False: they share none.
bool align(const std::string& clock, std::vector<TimelinePart>& parts, Ends& known) {
  std::vector<double> differences;
  for (const TimelinePart& part : parts) {
    if (part.clock != clock) continue;
    for_each_end(part, [&](const Collective& collective, double end) {
      const auto found = known.find(collective);
      if (found != known.end()) differences.push_back(found->second.value() - end);
    });
  }
  if (differences.empty()) return false;
  const double difference = median(std::move(differences));
  for (TimelinePart& part : parts) {
    if (part.clock != clock) continue;
    part.shift += difference;
    for_each_end(part, [&](const Collective& c, double end) { known[c].add(end); });
  }
  return true;
}

}  // namespace

void align_by_collectives(std::vector<TimelinePart>& parts) {
  if (parts.empty()) return;
  const std::string reference = parts.front().clock;
  Ends known;
  std::set<std::string> left;
  for (const TimelinePart& part : parts) {
    if (part.clock != reference)
      left.insert(part.clock);
    else
      for_each_end(part, [&](const Collective& c, double end) { known[c].add(end); });
  }
  // A host may share collectives with another one only: until nothing more is found.
  while (
      std::erase_if(left, [&](const std::string& clock) { return align(clock, parts, known); })) {
  }
}

Timeline merge(std::vector<TimelinePart> parts) {
  Timeline out;
  for (TimelinePart& part : parts) {
    if (out.header.plan_digest.empty()) out.header.plan_digest = part.timeline.header.plan_digest;
    out.header.world = std::max(out.header.world, part.timeline.header.world);
    for (TimelineEvent& event : part.timeline.events) {
      event.start += part.shift;
      event.end += part.shift;
      if (event.arrival != -1) event.arrival += part.shift;
      out.header.world = std::max(out.header.world, event.rank + 1);
      out.events.push_back(std::move(event));
    }
  }
  std::stable_sort(
      out.events.begin(), out.events.end(),
      [](const TimelineEvent& a, const TimelineEvent& b) { return a.start < b.start; });
  out.header.clock_spread_seconds = clock_spread(out);
  return out;
}

double clock_spread(const Timeline& timeline) {
  std::map<Collective, std::vector<std::pair<int, double>>> ends;
  for (const TimelineEvent& event : timeline.events)
    if (event.sequence >= 0) ends[{event.group, event.sequence}].push_back({event.rank, event.end});
  std::map<int, std::vector<double>> errors;
  for (const auto& [key, of_ranks] : ends) {
    if (of_ranks.size() < 2) continue;
    double mean = 0;
    for (const auto& [rank, end] : of_ranks) mean += end / static_cast<double>(of_ranks.size());
    for (const auto& [rank, end] : of_ranks) errors[rank].push_back(end - mean);
  }
  if (errors.empty()) return 0;
  double least = 1e300, most = -1e300;
  for (const auto& [rank, of_rank] : errors) {
    least = std::min(least, median(of_rank));
    most = std::max(most, median(of_rank));
  }
  return most - least;
}

}  // namespace tautline
