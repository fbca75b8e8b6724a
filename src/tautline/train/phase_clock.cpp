#include "tautline/train/phase_clock.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace tautline::train {

PhaseClock::PhaseClock(Recorder& recorder, c10::Device device)
    : recorder_(recorder), device_(device) {
  if (!device_.is_cpu()) set_origin();
}

std::shared_ptr<c10::Event> PhaseClock::mark() const {
  const c10::impl::VirtualGuardImpl guard(device_.type());
  auto event = std::make_shared<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event->record(guard.getStream(device_));
  return event;
}

/// A moment that both clocks know: the device is idle, so its event is now.
void PhaseClock::set_origin() {
  origin_ = mark();
  origin_->synchronize();
  origin_seconds_ = recorder_.now();
}

PhaseClock::Phase::Phase(PhaseClock& clock, int64_t step, const std::string& kind,
                         const std::string& name)
    : clock_(clock),
      span_(clock.recorder_.span(step, clock.device_.is_cpu() ? "compute" : "host", kind, name)) {
  if (clock.device_.is_cpu()) return;
  pending_ = clock.pending_.size();
  clock.pending_.push_back({step, kind, name, clock.mark(), nullptr});
}

PhaseClock::Phase::~Phase() {
  if (pending_) clock_.pending_[*pending_].end = clock_.mark();
}

PhaseClock::Phase PhaseClock::phase(int64_t step, const std::string& kind,
                                    const std::string& name) {
  return Phase(*this, step, kind, name);
}

void PhaseClock::flush() {
  if (device_.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  guard.synchronizeDevice(device_.index());
  for (const Pending& phase : pending_) {
    if (!phase.end) continue;
    TimelineEvent event;
    event.step = phase.step;
    event.stream = "compute";
    event.kind = phase.kind;
    event.name = phase.name;
    event.start = origin_seconds_ + origin_->elapsedTime(*phase.begin) / 1e3;
    event.end = origin_seconds_ + origin_->elapsedTime(*phase.end) / 1e3;
    recorder_.add(std::move(event));
  }
  pending_.clear();
  set_origin();
}

}  // namespace tautline::train
