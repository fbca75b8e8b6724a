// How fast a run is: rates over its steps, time per step, useful FLOP, balance.
//
// sample: a sequence (a history or a chunk of it); token: a position that goes through the network;
// target: a position whose next item is predicted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tautline::train {

/// One step over all ranks.
struct StepCount {
  double seconds = 0;
  double samples = 0, tokens = 0, targets = 0;
  double imbalance = 1;  // tokens of the busiest rank over the mean
};

struct Rates {
  double samples_per_s = 0, tokens_per_s = 0, targets_per_s = 0;
  double step_ms_p50 = 0, step_ms_p95 = 0;
  double imbalance = 1;
  double flop_per_s = 0;  // of all ranks
  int64_t steps = 0;
};

/// Model FLOP utilisation (Chowdhery et al., "PaLM", 2022, appendix B): useful FLOP of
/// workload/describe.h / (time x ranks x the device's peak). 0 where the peak is not known.
double model_flop_utilisation(const Rates& rates, int ranks, double peak_flop_per_second);

class Throughput {
 public:
  /// The first steps (caches, allocator, page faults) are left out where there are enough others.
  void add(const StepCount& count) { steps_.push_back(count); }
  void add_flop(double flop) { flop_.push_back(flop); }
  Rates rates() const;
  /// Of the last `steps` only, for the progress line.
  Rates recent(size_t steps) const;

 private:
  Rates over(size_t begin) const;
  std::vector<StepCount> steps_;
  std::vector<double> flop_;
};

}  // namespace tautline::train
