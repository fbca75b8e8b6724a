#include "tautline/train/recorder.h"

#include <algorithm>
#include <fstream>
#include <unistd.h>

namespace tautline::train {
namespace {

double steady_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string steady_clock_name() {
  char host[256] = {}, name[64] = {};
  ::gethostname(host, sizeof host - 1);
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  const ssize_t length = ::readlink("/proc/self/ns/time", name, sizeof name - 1);
  return std::string(host) + "/" + boot + "/" + (length > 0 ? name : "");
}

Recorder::Recorder(const RecorderOptions& options) : options_(options), origin_(steady_now()) {}

double Recorder::now() const { return steady_now() - origin_; }

Recorder::Span::Span(Span&& other) noexcept
    : recorder_(std::exchange(other.recorder_, nullptr)), event_(std::move(other.event_)) {}

Recorder::Span::~Span() {
  if (recorder_ == nullptr) return;
  event_.end = recorder_->now();
  recorder_->add(std::move(event_));
}

Recorder::Span Recorder::span(int64_t step, std::string stream, std::string kind,
                              std::string name) {
  TimelineEvent event;
  event.step = step;
  event.stream = std::move(stream);
  event.kind = std::move(kind);
  event.name = std::move(name);
  event.start = now();
  return {this, std::move(event)};
}

bool Recorder::keeps_events_of(int64_t step) const {
  if (step < first_step_ + options_.full_steps) return true;
  return options_.every > 0 && step % options_.every == 0;
}

void Recorder::add(TimelineEvent event) {
  event.rank = options_.rank;
  const std::lock_guard lock(mutex_);
  count(event);
  if (event.step >= 0) {
    if (first_step_ < 0) first_step_ = event.step;
    add_to_phase(event.step, {event.stream, event.kind}, event.end - event.start);
    if (!keeps_events_of(event.step)) return;
  }
  if (static_cast<int64_t>(events_.size()) < options_.max_events)
    events_.push_back(std::move(event));
  else
    ++dropped_;
}

void Recorder::count(const TimelineEvent& event) {
  activity_.add(event);
  if (use_of(event) != Use::kStep) return;
  step_starts_.push_back(event.start);
  if (step_starts_.size() < 2 * kSettledSteps) return;
  activity_.settle(step_starts_[kSettledSteps]);
  step_starts_.erase(step_starts_.begin(), step_starts_.begin() + kSettledSteps);
}

// Events come in nearly in order of step: the place is at the back or just before it.
void Recorder::add_to_phase(int64_t step, PhaseKey key, double seconds) {
  const size_t phase = phase_numbers_.try_emplace(std::move(key), totals_.size()).first->second;
  if (phase == totals_.size()) totals_.push_back(0);
  totals_[phase] += seconds;
  auto at = sums_.end();
  while (at != sums_.begin() && std::prev(at)->step > step) --at;
  if (at == sums_.begin() || std::prev(at)->step != step)
    at = std::next(sums_.insert(at, StepSums{step, {}}));
  std::vector<double>& sums = std::prev(at)->seconds;
  if (sums.size() <= phase) sums.resize(phase + 1);
  sums[phase] += seconds;
  if (static_cast<int64_t>(sums_.size()) > options_.max_steps) sums_.pop_front();
}

Timeline Recorder::timeline() const {
  const std::lock_guard lock(mutex_);
  Timeline out;
  out.header.world = options_.rank + 1;
  out.events = events_;
  std::stable_sort(
      out.events.begin(), out.events.end(),
      [](const TimelineEvent& a, const TimelineEvent& b) { return a.start < b.start; });
  return out;
}

StepSeconds Recorder::step_seconds() const {
  const std::lock_guard lock(mutex_);
  return activity_.seconds();
}

std::vector<StepPhases> Recorder::phases() const {
  const std::lock_guard lock(mutex_);
  std::vector<StepPhases> out;
  for (const StepSums& sums : sums_) {
    out.push_back({sums.step, {}});
    for (const auto& [key, phase] : phase_numbers_)
      if (phase < sums.seconds.size() && sums.seconds[phase] > 0)
        out.back().seconds[key] = sums.seconds[phase];
  }
  return out;
}

std::map<PhaseKey, double> Recorder::totals() const {
  const std::lock_guard lock(mutex_);
  std::map<PhaseKey, double> out;
  for (const auto& [key, phase] : phase_numbers_) out[key] = totals_[phase];
  return out;
}

int64_t Recorder::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace tautline::train
