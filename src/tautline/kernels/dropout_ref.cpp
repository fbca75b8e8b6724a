// The specification of dropout.h: plain loops. Tests only.
#include "tautline/kernels/dropout.h"

namespace tautline::kernels {

void dropout_ref(const Dropout& p) {
  const auto* x = static_cast<const float*>(p.x);
  const auto* residual = static_cast<const float*>(p.residual);
  for (int64_t d = 0; d < p.width; ++d) {
    double d_bias = 0;
    for (int64_t t = 0; t < p.rows; ++t) {
      const int64_t i = t * p.width + d;
      const auto sample = static_cast<uint64_t>(p.sample[t]);
      const Philox4 block =
          philox(p.key, static_cast<uint32_t>(d / 4), static_cast<uint32_t>(p.position[t]),
                 static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32));
      const bool keep = uniform01(block.v[d % 4]) >= static_cast<float>(p.p);
      const double value = keep ? (x[i] + (p.bias ? double{p.bias[d]} : 0.0)) / (1 - p.p) : 0.0;
      static_cast<float*>(p.out)[i] = static_cast<float>(value + (residual ? residual[i] : 0.0));
      d_bias += value;
    }
    if (p.d_bias) p.d_bias[d] = static_cast<float>(d_bias);
  }
}

}  // namespace tautline::kernels
