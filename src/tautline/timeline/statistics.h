// What a Timeline comes to: seconds by rank and phase, exposed communication and idle time (defined in
// activity.h), imbalance and step times.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tautline/timeline/activity.h"
#include "tautline/timeline/timeline.h"

namespace tautline {

struct RankStatistics {
  int rank = 0;
  std::map<std::string, double> kind_seconds;  // sum of durations by kind (may overlap)
  StepSeconds seconds;
};

struct TimelineStatistics {
  int64_t steps = 0;
  std::vector<RankStatistics> ranks;  // in order of rank
  double step_seconds_p50 = 0, step_seconds_p95 = 0;
  double exposed_comm_share = 0;  // of the span, mean over ranks
  double idle_share = 0;
  double load_imbalance = 1;  // max over mean of the ranks' compute seconds a step, mean over steps
};

/// A step lasts from its first event's start to its last event's end on a rank (events of kind
/// "step" where there are any, else all but those of the streams evaluation and checkpoint); the
/// job's step is the longest of the ranks'. Events with a negative step count for no step.
TimelineStatistics statistics(const Timeline& timeline);

/// Of sorted or unsorted values, linear between neighbours; 0 for none. q in [0, 1].
double quantile(std::vector<double> values, double q);

}  // namespace tautline
