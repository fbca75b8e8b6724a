#include <cmath>

#include "tautline/kernels/adamw.h"

namespace tautline::kernels {

void adamw_ref(const AdamW& p) {
  const double divisor = p.divisor ? *p.divisor : 1.0, t = static_cast<double>(p.step);
  for (int64_t r = 0; r < p.run_count; ++r) {
    const AdamWRun& run = p.runs[r];
    for (int64_t i = run.begin; i < run.begin + run.count; ++i) {
      const double g = p.gradient[i] / divisor;
      const double m = p.beta1 * p.first[i] + (1 - p.beta1) * g;
      const double v = p.beta2 * p.second[i] + (1 - p.beta2) * g * g;
      const double corrected = std::sqrt(v / (1 - std::pow(p.beta2, t))) + p.eps;
      const double kept = p.value[i] * (1 - p.rate * run.decay);
      p.first[i] = static_cast<float>(m);
      p.second[i] = static_cast<float>(v);
      p.value[i] = static_cast<float>(kept - p.rate / (1 - std::pow(p.beta1, t)) * m / corrected);
    }
  }
}

}  // namespace tautline::kernels
