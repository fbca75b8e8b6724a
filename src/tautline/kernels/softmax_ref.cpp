// The specification of softmax.h: plain loops in double. Tests only.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tautline/kernels/softmax.h"

namespace tautline::kernels {
namespace {

double corrected(const SoftmaxRows& p, int64_t r, int64_t j) {
  if (p.column_id && p.row_id && p.column_id[j] == p.row_id[r])
    return -std::numeric_limits<double>::infinity();
  const double x = static_cast<const float*>(p.logits)[r * p.row_stride + j] * p.scale;
  return p.log_q ? x - p.log_q[j] : x;
}

}  // namespace

void softmax_statistics_ref(const SoftmaxRows& p) {
  constexpr double kLowest = -std::numeric_limits<double>::infinity();
  for (int64_t r = 0; r < p.rows; ++r) {
    double max = p.extra ? p.extra[r] : kLowest, sum = 0;
    for (int64_t j = 0; j < p.classes; ++j) max = std::max(max, corrected(p, r, j));
    if (max > kLowest) {
      for (int64_t j = 0; j < p.classes; ++j) sum += std::exp(corrected(p, r, j) - max);
      if (p.extra) sum += std::exp(p.extra[r] - max);
    }
    p.max[r] = static_cast<float>(max);
    p.sum[r] = static_cast<float>(sum);
    if (p.target && p.target[r] >= 0)
      p.target_logit[r] = static_cast<float>(corrected(p, r, p.target[r]));
  }
}

void softmax_gradient_ref(const SoftmaxRows& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t j = 0; j < p.classes; ++j) {
      const double probability = std::exp(corrected(p, r, j) - p.lse[r]);
      const bool hit = p.target && p.target[r] == j;
      static_cast<float*>(p.logits)[r * p.row_stride + j] =
          static_cast<float>((probability - (hit ? 1 : 0)) * p.weight);
    }
  }
}

void repeat_bias_add_ref(const SoftmaxRows& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t i = p.repeat.first[r]; i < p.repeat.last[r]; ++i) {
      const int64_t j = p.repeat.column[i];
      if (j >= 0) static_cast<float*>(p.logits)[r * p.row_stride + j] += *p.repeat.bias;
    }
  }
}

void repeat_bias_sum_ref(const SoftmaxRows& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    double sum = 0;
    for (int64_t i = p.repeat.first[r]; i < p.repeat.last[r]; ++i) {
      const int64_t j = p.repeat.column[i];
      if (j >= 0) sum += static_cast<const float*>(p.logits)[r * p.row_stride + j];
    }
    p.repeat.d_bias[r] = static_cast<float>(sum);
  }
}

void l2_normalize_forward_ref(const L2Normalize& p) {
  const auto* x = static_cast<const float*>(p.x);
  for (int64_t r = 0; r < p.rows; ++r) {
    double squares = 0;
    for (int64_t e = 0; e < p.width; ++e)
      squares += double{x[r * p.width + e]} * x[r * p.width + e];
    const double norm = std::max(std::sqrt(squares), p.eps);
    for (int64_t e = 0; e < p.width; ++e)
      static_cast<float*>(p.y)[r * p.width + e] = static_cast<float>(x[r * p.width + e] / norm);
    p.norm[r] = static_cast<float>(norm);
  }
}

void l2_normalize_backward_ref(const L2Normalize& p) {
  const auto *y = static_cast<const float*>(p.y), *d_y = static_cast<const float*>(p.d_y);
  for (int64_t r = 0; r < p.rows; ++r) {
    double dot = 0;
    for (int64_t e = 0; e < p.width; ++e) dot += double{d_y[r * p.width + e]} * y[r * p.width + e];
    for (int64_t e = 0; e < p.width; ++e) {
      const int64_t i = r * p.width + e;
      static_cast<float*>(p.d_x)[i] = static_cast<float>((d_y[i] - dot * y[i]) / p.norm[r]);
    }
  }
}

}  // namespace tautline::kernels
