// The specification of rope.h: plain loops. Tests only.
#include <cmath>

#include "tautline/kernels/rope.h"

namespace tautline::kernels {

void rope_ref(const Rope& p) {
  const auto* in = static_cast<const float*>(p.in);
  auto* out = static_cast<float*>(p.out);
  const int64_t half = p.head_dim / 2;
  for (int64_t t = 0; t < p.tokens; ++t) {
    for (int64_t part = 0; part < (p.with_v ? 3 : 2); ++part) {
      for (int64_t h = 0; h < p.heads; ++h) {
        const int64_t within = (part * p.heads + h) * p.head_dim;
        const float* x = in + t * p.in_token + within;
        float* y = out + t * p.out_token + within;
        for (int64_t d = 0; d < half; ++d) {
          const float a = x[d], b = x[half + d];
          double angle = p.position[t] * std::pow(p.base, -2.0 * d / p.head_dim);
          if (p.backward) angle = -angle;
          const double c = part < 2 ? std::cos(angle) : 1.0, s = part < 2 ? std::sin(angle) : 0.0;
          y[d] = static_cast<float>(a * c - b * s);
          y[half + d] = static_cast<float>(b * c + a * s);
        }
      }
    }
  }
}

}  // namespace tautline::kernels
