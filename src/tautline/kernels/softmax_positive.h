// The positive of a sampled softmax: of N rows h_r and their own items e_r, E numbers each, beside
// the negatives that all rows share (softmax.h, softmax_loss_sm90/loss.h).
//
//   own_r = (h_r . e_r) * scale - log_q_r
// With the row's lse_r = max_r + log(sum_r), in which own_r is counted:
//   loss_r = lse_r - own_r,  d_own_r = (exp(own_r - lse_r) - 1) * scale,
//   d_h_r += d_own_r e_r,  d_e_r = d_own_r h_r.
// Precision: sums in FP32, each matrix in its own type. Each way is one pass over what it reads.
#pragma once

#include <cstdint>

#include "tautline/kernels/element.h"

namespace tautline::kernels {

struct SoftmaxPositive {
  const void* h = nullptr;                     // [N, E]
  const void* positive = nullptr;              // [N, E]
  const float* log_q = nullptr;                // [N] or null
  float* own = nullptr;                        // [N]: forward writes, backward reads
  const float *max = nullptr, *sum = nullptr;  // [N]: backward
  float* loss = nullptr;                       // [N]: backward writes
  void* d_h = nullptr;         // [N, E] as h: has the negatives' part; null: losses only
  void* d_positive = nullptr;  // [N, E] as positive; null as d_h
  int64_t rows = 0, width = 0;
  double scale = 1.0;  // 1 / temperature
  Element h_element = Element::kFloat32, positive_element = Element::kFloat32;
  void* stream = nullptr;
};

void softmax_positive_forward_ref(const SoftmaxPositive& p);
void softmax_positive_backward_ref(const SoftmaxPositive& p);
void softmax_positive_forward_cuda(const SoftmaxPositive& p);
void softmax_positive_backward_cuda(const SoftmaxPositive& p);

}  // namespace tautline::kernels
