// The phases of a step, as the device runs them. On CPUs a phase is a span of the host's clock; on
// GPUs the host only queues the work, so a phase is the time between two events of the stream, read
// when the device has been synchronised anyway. Both end up on the recorder's stream "compute";
// the GPU's host spans are on "host".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include "tautline/train/recorder.h"

namespace tautline::train {

class PhaseClock {
 public:
  PhaseClock(Recorder& recorder, c10::Device device);

  class Phase {
   public:
    ~Phase();
    Phase(Phase&&) = delete;

   private:
    friend class PhaseClock;
    Phase(PhaseClock& clock, int64_t step, const std::string& kind, const std::string& name);
    PhaseClock& clock_;
    Recorder::Span span_;
    std::optional<size_t> pending_;
  };
  /// Runs until the result is destroyed.
  [[nodiscard]] Phase phase(int64_t step, const std::string& kind, const std::string& name = "");

  /// Waits for the device and hands over what its clock says. On CPUs nothing.
  void flush();

 private:
  struct Pending {
    int64_t step;
    std::string kind, name;
    std::shared_ptr<c10::Event> begin, end;
  };
  std::shared_ptr<c10::Event> mark() const;
  void set_origin();

  Recorder& recorder_;
  c10::Device device_;
  std::vector<Pending> pending_;
  std::shared_ptr<c10::Event> origin_;  // on the device ...
  double origin_seconds_ = 0;           // ... and by the recorder's clock
};

}  // namespace tautline::train
