// The specification of norm.h: plain loops, double accumulation. Tests only.
#include <cmath>

#include "tautline/kernels/norm.h"

namespace tautline::kernels {

void norm_forward_ref(const NormForward& p) {
  const auto* x = static_cast<const float*>(p.x);
  const auto* residual = static_cast<const float*>(p.residual);
  auto* sum = static_cast<float*>(p.sum);
  auto* out = static_cast<float*>(p.out);
  for (int64_t t = 0; t < p.rows; ++t) {
    double total = 0, squares = 0;
    const auto s = [&](int64_t d) {
      const int64_t i = t * p.width + d;
      return residual ? x[i] + residual[i] : x[i];  // rounded to FP32, as the sum that is stored
    };
    for (int64_t d = 0; d < p.width; ++d) total += s(d);
    const double mean = p.kind == NormKind::kLayer ? total / p.width : 0.0;
    for (int64_t d = 0; d < p.width; ++d) squares += (s(d) - mean) * (s(d) - mean);
    const double rstd = 1 / std::sqrt(squares / p.width + p.eps);
    for (int64_t d = 0; d < p.width; ++d) {
      const double bias = p.kind == NormKind::kLayer ? p.bias[d] : 0.0;
      if (sum) sum[t * p.width + d] = s(d);
      out[t * p.width + d] = static_cast<float>((s(d) - mean) * rstd * p.weight[d] + bias);
    }
    if (p.mean) p.mean[t] = static_cast<float>(mean);
    p.rstd[t] = static_cast<float>(rstd);
  }
}

// With n = (s - mean) * rstd and g = d_out * w: d_s = rstd * (g - [layer] mean(g) - n * mean(g n)).
void norm_backward_ref(const NormBackward& p) {
  const auto* d_out = static_cast<const float*>(p.d_out);
  const auto* d_sum = static_cast<const float*>(p.d_sum);
  const auto* s = static_cast<const float*>(p.s);
  auto* d_x = static_cast<float*>(p.d_x);
  const bool layer = p.kind == NormKind::kLayer;
  for (int64_t t = 0; t < p.rows; ++t) {
    const int64_t row = t * p.width;
    const double mean = layer ? p.mean[t] : 0.0, rstd = p.rstd[t];
    double g_mean = 0, gn_mean = 0;
    for (int64_t d = 0; d < p.width; ++d) {
      const double g = double{d_out[row + d]} * p.weight[d];
      g_mean += g / p.width;
      gn_mean += g * (s[row + d] - mean) * rstd / p.width;
    }
    for (int64_t d = 0; d < p.width; ++d) {
      const double n = (s[row + d] - mean) * rstd, g = double{d_out[row + d]} * p.weight[d];
      const double through = rstd * (g - (layer ? g_mean : 0.0) - n * gn_mean);
      d_x[row + d] = static_cast<float>(through + (d_sum ? d_sum[row + d] : 0.0f));
    }
  }
  for (int64_t d = 0; d < p.width; ++d) {
    double d_weight = 0, d_bias = 0;
    for (int64_t t = 0; t < p.rows; ++t) {
      const double n = (s[t * p.width + d] - (layer ? p.mean[t] : 0.0)) * p.rstd[t];
      d_weight += d_out[t * p.width + d] * n;
      d_bias += d_out[t * p.width + d];
    }
    p.d_weight[d] = static_cast<float>(d_weight);
    if (p.d_bias) p.d_bias[d] = static_cast<float>(d_bias);
  }
}

}  // namespace tautline::kernels
