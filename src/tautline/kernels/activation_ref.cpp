// The specification of activation.h: plain loops in double. Tests only.
#include <cmath>

#include "tautline/kernels/activation.h"

namespace tautline::kernels {
namespace {

double biased(const Activation& p, int64_t t, int64_t d) {
  const double x = static_cast<const float*>(p.x)[t * p.input_width() + d];
  return p.bias ? x + p.bias[d] : x;
}
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double normal_cdf(double x) { return 0.5 * std::erfc(-x * std::sqrt(0.5)); }
double normal_density(double x) { return std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI); }

}  // namespace

void activation_forward_ref(const Activation& p) {
  for (int64_t t = 0; t < p.rows; ++t) {
    for (int64_t d = 0; d < p.width; ++d) {
      const double g = biased(p, t, d);
      const double y = p.kind == ActivationKind::kGelu ? g * normal_cdf(g)
                                                       : g * sigmoid(g) * biased(p, t, p.width + d);
      static_cast<float*>(p.out)[t * p.width + d] = static_cast<float>(y);
    }
  }
}

void activation_backward_ref(const Activation& p) {
  auto* d_x = static_cast<float*>(p.d_x);
  for (int64_t d = 0; d < p.width; ++d) {
    double gate_total = 0, up_total = 0;
    for (int64_t t = 0; t < p.rows; ++t) {
      const double dy = static_cast<const float*>(p.d_out)[t * p.width + d], g = biased(p, t, d);
      const int64_t row = t * p.input_width();
      if (p.kind == ActivationKind::kGelu) {
        const double d_gate = dy * (normal_cdf(g) + g * normal_density(g));
        d_x[row + d] = static_cast<float>(d_gate);
        gate_total += d_gate;
      } else {
        const double s = sigmoid(g), u = biased(p, t, p.width + d);
        const double d_gate = dy * u * s * (1 + g * (1 - s)), d_up = dy * g * s;
        d_x[row + d] = static_cast<float>(d_gate);
        d_x[row + p.width + d] = static_cast<float>(d_up);
        gate_total += d_gate;
        up_total += d_up;
      }
    }
    if (!p.d_bias) continue;
    p.d_bias[d] = static_cast<float>(gate_total);
    if (p.kind == ActivationKind::kSwiglu) p.d_bias[p.width + d] = static_cast<float>(up_total);
  }
}

}  // namespace tautline::kernels
