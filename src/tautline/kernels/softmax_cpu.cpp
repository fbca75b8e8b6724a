// softmax.h on the CPU: the chunk has just been written by a GEMM and lies in cache.
#include <cmath>
#include <limits>

#include "tautline/kernels/simd.h"
#include "tautline/kernels/softmax.h"

namespace tautline::kernels::TAUTLINE_ISA {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// x_rj for the lanes from column j; lanes past the end are -inf.
TAUTLINE_ALWAYS_INLINE Vf corrected(const SoftmaxRows& p, const float* row, int64_t r, int64_t j,
                                    int n) {
  Vf x = load_some(row + j, n) * static_cast<float>(p.scale);
  if (p.log_q) x -= load_some(p.log_q + j, n);
  if (p.column_id && p.row_id) {
    for (int lane = 0; lane < n; ++lane)
      if (p.column_id[j + lane] == p.row_id[r]) x[lane] = -kInfinity;
  }
  if (n < kLanes) {
    for (int lane = n; lane < kLanes; ++lane) x[lane] = -kInfinity;
  }
  return x;
}

float* row_of(const SoftmaxRows& p, int64_t r) { return floats(p.logits) + r * p.row_stride; }

}  // namespace

void softmax_statistics_cpu(const SoftmaxRows& p, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* row = row_of(p, r);
    Vf highest = splat(-kInfinity);
    for_lanes(p.classes,
              [&](int64_t j, int n) { highest = vmax(corrected(p, row, r, j, n), highest); });
    float max = reduce_max(highest), sum = 0.0f;
    if (p.extra && p.extra[r] > max) max = p.extra[r];
    if (max > -kInfinity) {
      Vf total{};
      for_lanes(p.classes,
                [&](int64_t j, int n) { total += vexp(corrected(p, row, r, j, n) - max); });
      sum = reduce_add(total);
      if (p.extra) sum += std::exp(p.extra[r] - max);
    }
    p.max[r] = max;
    p.sum[r] = sum;
    if (p.target && p.target[r] >= 0) p.target_logit[r] = corrected(p, row, r, p.target[r], 1)[0];
  }
}

void softmax_gradient_cpu(const SoftmaxRows& p, int64_t begin, int64_t end) {
  const float weight = static_cast<float>(p.weight);
  for (int64_t r = begin; r < end; ++r) {
    float* row = row_of(p, r);
    const float lse = p.lse[r];
    for_lanes(p.classes, [&](int64_t j, int n) {
      store_some(row + j, vexp(corrected(p, row, r, j, n) - lse) * weight, n);
    });
    if (p.target && p.target[r] >= 0) row[p.target[r]] -= weight;
  }
}

void l2_normalize_forward_cpu(const L2Normalize& p, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* x = floats(p.x) + r * p.width;
    float* y = floats(p.y) + r * p.width;
    Vf squares{};
    for_lanes(p.width, [&](int64_t e, int n) {
      const Vf v = load_some(x + e, n);
      squares += v * v;
    });
    const float length = std::sqrt(reduce_add(squares)), eps = static_cast<float>(p.eps);
    const float norm = length < eps ? eps : length;
    for_lanes(p.width, [&](int64_t e, int n) { store_some(y + e, load_some(x + e, n) / norm, n); });
    p.norm[r] = norm;
  }
}

void l2_normalize_backward_cpu(const L2Normalize& p, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* y = floats(p.y) + r * p.width;
    const float* d_y = floats(p.d_y) + r * p.width;
    float* d_x = floats(p.d_x) + r * p.width;
    Vf product{};
    for_lanes(p.width,
              [&](int64_t e, int n) { product += load_some(d_y + e, n) * load_some(y + e, n); });
    const float dot = reduce_add(product), inverse = 1.0f / p.norm[r];
    for_lanes(p.width, [&](int64_t e, int n) {
      store_some(d_x + e, (load_some(d_y + e, n) - dot * load_some(y + e, n)) * inverse, n);
    });
  }
}

}  // namespace tautline::kernels::TAUTLINE_ISA
