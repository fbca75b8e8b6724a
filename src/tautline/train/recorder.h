// What one rank does when, for the Timeline. Light: a span costs two clock reads and one lock that
// is almost never contended.
//
//   { auto scope = recorder.span(step, "compute", "forward", "layer.3.attention"); ... }
//
// What the steps are busy with (exposed communication above all) is counted over all of them, by
// timeline/activity.h: settled 256 steps later, as a GPU's events are handed over up to 100 late.
//
// Bounded memory: every step keeps its seconds by (stream, kind); full events are kept for the
// first `full_steps` steps and then for each `every`-th, up to `max_events`, and `dropped()` says
// how many did not fit.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tautline/timeline/activity.h"
#include "tautline/timeline/timeline.h"

namespace tautline::train {

/// Whose steady clock this process reads: two of one name read the same. The host by name and by its
/// start (a clone may have either of another's), and the kernel's time namespace.
std::string steady_clock_name();

struct RecorderOptions {
  int rank = 0;
  std::string clock = steady_clock_name();
  int64_t full_steps = 20;  // from the run's first step on
  int64_t every = 100;      // then the events of each so-many-th step; 0: none
  int64_t max_events = 200'000;
  int64_t max_steps = 200'000;  // phase sums beyond this drop the oldest
};

/// Seconds by (stream, kind) of one step. "step" itself is (host, step).
using PhaseKey = std::pair<std::string, std::string>;
struct StepPhases {
  int64_t step = 0;
  std::map<PhaseKey, double> seconds;
};

class Recorder {
 public:
  explicit Recorder(const RecorderOptions& options = {});

  /// Seconds since the recorder was made (steady clock).
  double now() const;
  /// The steady clock's time at which now() was 0, in seconds of that clock. Ranks that share the
  /// clock are aligned by the differences of their origins.
  double origin() const { return origin_; }
  const std::string& clock() const { return options_.clock; }

  class Span {
   public:
    Span(Span&& other) noexcept;
    Span& operator=(Span&&) = delete;
    ~Span();
    void add_bytes(double bytes) { event_.bytes += bytes; }
    void add_flop(double flop) { event_.flop += flop; }

   private:
    friend class Recorder;
    Span(Recorder* recorder, TimelineEvent event) : recorder_(recorder), event_(std::move(event)) {}
    Recorder* recorder_;
    TimelineEvent event_;
  };
  [[nodiscard]] Span span(int64_t step, std::string stream, std::string kind,
                          std::string name = "");

  /// A finished event, from a span, a collective or a device's clock. `rank` is filled in.
  void add(TimelineEvent event);

  /// The kept events, in order of start. Events of a step may still be coming in.
  Timeline timeline() const;
  /// Of all steps that have ended.
  StepSeconds step_seconds() const;
  /// Of the last `max_steps` steps, in order.
  std::vector<StepPhases> phases() const;
  /// Seconds over all steps, those that were dropped too.
  std::map<PhaseKey, double> totals() const;
  int64_t dropped() const;

  /// Events may come in so many steps after their own.
  static constexpr size_t kSettledSteps = 256;

 private:
  bool keeps_events_of(int64_t step) const;
  void count(const TimelineEvent& event);
  void add_to_phase(int64_t step, PhaseKey key, double seconds);

  // A step's seconds by the number of its phase: a run has few phases and many steps.
  struct StepSums {
    int64_t step = 0;
    std::vector<double> seconds;
  };

  RecorderOptions options_;
  double origin_ = 0;
  mutable std::mutex mutex_;
  int64_t first_step_ = -1;
  Activity activity_;
  std::vector<double> step_starts_;  // of the steps not yet settled
  std::vector<TimelineEvent> events_;
  std::map<PhaseKey, size_t> phase_numbers_;
  std::vector<double> totals_;  // by phase number
  std::deque<StepSums> sums_;
  int64_t dropped_ = 0;
};

}  // namespace tautline::train
