#include "tautline/timeline/activity.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tautline {
namespace {

/// Takes what lies before `time` out of `intervals`.
std::vector<Interval> before(std::vector<Interval>& intervals, double time) {
  std::vector<Interval> early, late;
  for (const Interval& i : intervals) {
    if (i.start < time) early.push_back({i.start, std::min(i.end, time)});
    if (i.end > time) late.push_back({std::max(i.start, time), i.end});
  }
  intervals = std::move(late);
  return united(std::move(early));
}

}  // namespace

Use use_of(const TimelineEvent& event) {
  if (event.kind == "step") return Use::kStep;
  if (event.stream == "comm") return Use::kCommunication;
  if (event.stream == "input") return Use::kInput;
  if (event.stream != "compute" || event.kind == "idle") return Use::kNone;
  return event.kind == "input" ? Use::kInput : event.kind == "wait" ? Use::kWait : Use::kWork;
}

void Activity::add(const TimelineEvent& event) {
  const Interval interval{event.start, event.end};
  switch (use_of(event)) {
    case Use::kStep:
      return steps_.push_back(interval);
    case Use::kWork:
      return work_.push_back(interval);
    case Use::kWait:
      return waits_.push_back(interval);
    case Use::kCommunication:
      return comm_.push_back(interval);
    case Use::kInput:
      return input_.push_back(interval);
    case Use::kNone:
      return;
  }
}

void Activity::settle(double time) {
  using Set = std::vector<Interval>;
  const Set span = before(steps_, time), comm = before(comm_, time), input = before(input_, time);
  const Set waits = before(waits_, time), work = without(before(work_, time), waits);
  const Set comm_of_steps = common(comm, span);
  settled_.span += length(span);
  settled_.compute += length(common(work, span));
  settled_.comm += length(comm_of_steps);
  settled_.exposed_comm += length(without(comm_of_steps, work));
  settled_.idle += length(without(without(without(span, work), comm), input));
}

StepSeconds Activity::seconds() const {
  Activity all = *this;
  all.settle(std::numeric_limits<double>::infinity());
  return all.settled_;
}

}  // namespace tautline
