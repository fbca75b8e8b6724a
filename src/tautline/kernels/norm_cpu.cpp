// norm.h on the CPU: a row stays in cache between the passes over it, so plain vector loops
// suffice.
#include <algorithm>
#include <cmath>

#include "tautline/kernels/norm.h"
#include "tautline/kernels/simd.h"

namespace tautline::kernels::TAUTLINE_ISA {
namespace {

template <bool kLayer>
void forward_row(const NormForward& p, int64_t t) {
  const int64_t row = t * p.width;
  const float* s = floats(p.x) + row;
  if (p.residual) {
    const float* residual = floats(p.residual) + row;
    float* sum = floats(p.sum) + row;
    for_lanes(p.width, [&](int64_t d, int n) {
      store_some(sum + d, load_some(s + d, n) + load_some(residual + d, n), n);
    });
    s = sum;
  }
  float mean = 0.0f;
  if (kLayer) {
    Vf total{};
    for_lanes(p.width, [&](int64_t d, int n) { total += load_some(s + d, n); });
    mean = reduce_add(total) / static_cast<float>(p.width);
  }
  Vf squares{};
  for_lanes(p.width, [&](int64_t d, int n) {
    const Vf centred = load_some(s + d, n, mean) - mean;
    squares += centred * centred;
  });
  const float variance = reduce_add(squares) / static_cast<float>(p.width);
  const float rstd = 1.0f / std::sqrt(variance + static_cast<float>(p.eps));
  float* out = floats(p.out) + row;
  for_lanes(p.width, [&](int64_t d, int n) {
    Vf y = (load_some(s + d, n) - mean) * rstd * load_some(p.weight + d, n);
    if (kLayer) y += load_some(p.bias + d, n);
    store_some(out + d, y, n);
  });
  if (kLayer) p.mean[t] = mean;
  p.rstd[t] = rstd;
}

template <bool kLayer>
void backward_row(const NormBackward& p, int64_t t, float* d_weight, float* d_bias) {
  const int64_t row = t * p.width;
  const float* d_out = floats(p.d_out) + row;
  const float* d_sum = p.d_sum ? floats(p.d_sum) + row : nullptr;
  const float* s = floats(p.s) + row;
  float* d_x = floats(p.d_x) + row;
  const float mean = kLayer ? p.mean[t] : 0.0f, rstd = p.rstd[t];
  Vf g_total{}, gn_total{};
  for_lanes(p.width, [&](int64_t d, int n) {
    const Vf dy = load_some(d_out + d, n), normed = (load_some(s + d, n) - mean) * rstd;
    const Vf g = dy * load_some(p.weight + d, n);
    gn_total += g * normed;
    store_some(d_weight + d, load_some(d_weight + d, n) + dy * normed, n);
    if (kLayer) {
      g_total += g;
      store_some(d_bias + d, load_some(d_bias + d, n) + dy, n);
    }
  });
  const float gn_mean = reduce_add(gn_total) / static_cast<float>(p.width);
  const float g_mean = kLayer ? reduce_add(g_total) / static_cast<float>(p.width) : 0.0f;
  for_lanes(p.width, [&](int64_t d, int n) {
    const Vf normed = (load_some(s + d, n) - mean) * rstd;
    const Vf g = load_some(d_out + d, n) * load_some(p.weight + d, n);
    Vf through = (g - g_mean - normed * gn_mean) * rstd;
    if (d_sum) through += load_some(d_sum + d, n);
    store_some(d_x + d, through, n);
  });
}

}  // namespace

void norm_forward_cpu(const NormForward& p, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    if (p.kind == NormKind::kLayer) {
      forward_row<true>(p, t);
    } else {
      forward_row<false>(p, t);
    }
  }
}

void norm_backward_cpu(const NormBackward& p, int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; ++block) {
    float* d_weight = p.workspace + block * 2 * p.width;
    float* d_bias = d_weight + p.width;
    std::fill_n(d_weight, 2 * p.width, 0.0f);
    const int64_t last = std::min(p.rows, (block + 1) * kNormBlockRows);
    for (int64_t t = block * kNormBlockRows; t < last; ++t) {
      if (p.kind == NormKind::kLayer) {
        backward_row<true>(p, t, d_weight, d_bias);
      } else {
        backward_row<false>(p, t, d_weight, d_bias);
      }
    }
  }
}

void norm_backward_finish_cpu(const NormBackward& p) {
  for (int64_t d = 0; d < p.width; ++d) {
    float d_weight = 0, d_bias = 0;
    for (int64_t block = 0; block < p.partials; ++block) {
      d_weight += p.workspace[block * 2 * p.width + d];
      d_bias += p.workspace[(block * 2 + 1) * p.width + d];
    }
    p.d_weight[d] = d_weight;
    if (p.d_bias) p.d_bias[d] = d_bias;
  }
}

}  // namespace tautline::kernels::TAUTLINE_ISA
