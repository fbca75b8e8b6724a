// The specification of softmax_positive.h: plain loops in double, on FP32. Tests only.
#include <cmath>

#include "tautline/kernels/softmax_positive.h"

namespace tautline::kernels {

void softmax_positive_forward_ref(const SoftmaxPositive& p) {
  const auto *h = static_cast<const float*>(p.h), *e = static_cast<const float*>(p.positive);
  for (int64_t r = 0; r < p.rows; ++r) {
    double dot = 0;
    for (int64_t k = 0; k < p.width; ++k) dot += double{h[r * p.width + k]} * e[r * p.width + k];
    p.own[r] = static_cast<float>(dot * p.scale - (p.log_q ? p.log_q[r] : 0));
  }
}

void softmax_positive_backward_ref(const SoftmaxPositive& p) {
  const auto *h = static_cast<const float*>(p.h), *e = static_cast<const float*>(p.positive);
  for (int64_t r = 0; r < p.rows; ++r) {
    const double loss = p.max[r] + std::log(double{p.sum[r]}) - p.own[r];
    const double d_own = std::expm1(-loss) * p.scale;
    p.loss[r] = static_cast<float>(loss);
    if (!p.d_h) continue;
    for (int64_t i = r * p.width; i < (r + 1) * p.width; ++i) {
      auto& d_h = static_cast<float*>(p.d_h)[i];
      d_h = static_cast<float>(d_h + d_own * e[i]);
      static_cast<float*>(p.d_positive)[i] = static_cast<float>(d_own * h[i]);
    }
  }
}

}  // namespace tautline::kernels
