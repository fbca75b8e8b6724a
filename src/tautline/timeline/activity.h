// What one rank's steps are busy with: the one definition of exposed communication, for a run while it
// goes on, a Timeline of many ranks and a simulated one.
//
// Exposed communication is the time in which a collective of the rank is under way while the rank
// computes nothing. It is taken from intervals, never from sums of durations: what a collective lasts
// behind computation costs nothing, and two at once cost their union. Sources:
// - HolisticTraceAnalysis, get_comm_comp_overlap (hta/analyzers/communication_analysis.py): merged
//   intervals of communication kernels and of computation kernels, and the share of the former in
//   which both run. Exposed is the rest of it.
// - TraceLens, GPUEventAnalyser (TraceLens/TreePerf/gpu_event_analyser.py): "time spent in
//   communication kernels that is not overlapped by computation", united(comm) less united(compute).
// As there, a collective is under way from the moment at which this rank has started it: that a peer
// comes late to it is inside.
//
// Not the same: the time for which a rank stands waiting for collectives. That leaves out a collective
// under way while the rank has nothing to compute but waits for something else (the reader).
#pragma once

#include <vector>

#include "tautline/timeline/intervals.h"
#include "tautline/timeline/timeline.h"

namespace tautline {

/// What an event is to its rank's step. Work is what the stream "compute" does, whatever its kind,
/// but for "wait" (it stands still, also inside a span of work) and "input" (what prepares a batch).
enum class Use { kStep, kWork, kWait, kCommunication, kInput, kNone };
Use use_of(const TimelineEvent& event);

/// Seconds of a rank's steps.
struct StepSeconds {
  double span = 0;          // union of the steps
  double compute = 0;       // of the span: work less the waits in it
  double comm = 0;          // of the span: a collective is under way
  double exposed_comm = 0;  // of `comm`: nothing is computed
  double idle = 0;          // of the span: neither compute nor comm nor input
  /// Exposed communication over the span; 0 without one.
  double exposed_share() const { return span > 0 ? exposed_comm / span : 0; }
  bool operator==(const StepSeconds&) const = default;
};

/// Counts the events of one rank as they come, in any order.
class Activity {
 public:
  /// Events of the kind "step" are the steps; other events count where they lie inside of one.
  void add(const TimelineEvent& event);
  /// A step of a Timeline that has no such events.
  void add_step(const Interval& step) { steps_.push_back(step); }
  /// Counts all before `time` for good, and lets go of it: nothing that starts before it may follow.
  void settle(double time);
  /// With what is not settled yet.
  StepSeconds seconds() const;

 private:
  std::vector<Interval> steps_, work_, waits_, comm_, input_;
  StepSeconds settled_;
};

}  // namespace tautline
