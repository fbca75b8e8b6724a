#include "tautline/train/throughput.h"

#include <algorithm>

namespace tautline::train {
namespace {

constexpr size_t kWarmUp = 3;

double quantile(std::vector<double> values, double q) {
  const auto at = static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

}  // namespace

double model_flop_utilisation(const Rates& rates, int ranks, double peak_flop_per_second) {
  return peak_flop_per_second > 0 ? rates.flop_per_s / (ranks * peak_flop_per_second) : 0;
}

Rates Throughput::over(size_t begin) const {
  Rates rates;
  double seconds = 0, imbalance = 0, flop = 0;
  std::vector<double> times;
  for (size_t i = begin; i < steps_.size(); ++i) {
    const StepCount& step = steps_[i];
    seconds += step.seconds;
    imbalance += step.imbalance;
    rates.samples_per_s += step.samples;
    rates.tokens_per_s += step.tokens;
    rates.targets_per_s += step.targets;
    if (i < flop_.size()) flop += flop_[i];
    times.push_back(step.seconds * 1e3);
  }
  if (times.empty() || seconds <= 0) return rates;
  rates.steps = static_cast<int64_t>(times.size());
  for (double* rate : {&rates.samples_per_s, &rates.tokens_per_s, &rates.targets_per_s}) {
    *rate /= seconds;
  }
  rates.flop_per_s = flop / seconds;
  rates.imbalance = imbalance / static_cast<double>(times.size());
  rates.step_ms_p50 = quantile(times, 0.50);
  rates.step_ms_p95 = quantile(times, 0.95);
  return rates;
}

Rates Throughput::rates() const { return over(steps_.size() > 3 * kWarmUp ? kWarmUp : 0); }

Rates Throughput::recent(size_t steps) const {
  return over(steps_.size() > steps ? steps_.size() - steps : 0);
}

}  // namespace tautline::train
