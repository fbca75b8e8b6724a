// The row pass of a softmax loss over a chunk of logits that a GEMM has just written: C rows, V
// classes, in place.
//
//   x_rj = logits_rj * scale - log_q_j, and -inf where column_id_j == row_id_r (accidental hits)
// Statistics: max_r = max_j x_rj, sum_r = sum_j exp(x_rj - max_r), target_r = x_r,target(r).
// Gradient:   logits_rj <- (exp(x_rj - lse_r) - [j == target(r)]) * weight_r.
// A positive class that is not among the columns (sampled softmax) enters through `extra`: one more
// logit a row, already scaled and corrected.
//
// Reference for the correction by log q: Bengio & Senecal 2008; for shared negatives Yi et al.
// 2019, section 3. Precision: logits in FP32 on CPU, FP32 or bf16 on CUDA; sums in FP32.
#pragma once

#include <cstdint>

#include "tautline/kernels/element.h"
#include "tautline/kernels/isa.h"
#include "tautline/kernels/repeat_bias.h"

namespace tautline::kernels {

struct SoftmaxRows {
  void* logits = nullptr;  // [C, V], rows row_stride apart
  int64_t row_stride = 0;
  const float* log_q = nullptr;        // [V] or null
  const int64_t* column_id = nullptr;  // [V] or null
  const int64_t* row_id = nullptr;     // [C] or null, as column_id
  const int64_t* target = nullptr;     // [C] column of the true class, -1: not among them; or null
  const float* extra = nullptr;        // [C] or null
  float* max = nullptr;                // [C]: written by the statistics (with `extra` counted in)
  float* sum = nullptr;                // [C]
  float* target_logit = nullptr;       // [C]; left alone where target is -1
  const float* lse = nullptr;          // [C]: read by the gradient
  double scale = 1.0;                  // 1 / temperature
  double weight = 1.0;                 // of every row's gradient with respect to x
  int64_t rows = 0, classes = 0;       // C, V
  RepeatBias repeat;                   // for the two functions at the end of this part alone
  Element element = Element::kFloat32;
  void* stream = nullptr;
};

void softmax_statistics_ref(const SoftmaxRows& p);
void softmax_gradient_ref(const SoftmaxRows& p);

/// Rows [begin, end).
TAUTLINE_ISA_KERNEL(void softmax_statistics_cpu(const SoftmaxRows& p, int64_t begin, int64_t end),
                    softmax_statistics_cpu(p, begin, end))
TAUTLINE_ISA_KERNEL(void softmax_gradient_cpu(const SoftmaxRows& p, int64_t begin, int64_t end),
                    softmax_gradient_cpu(p, begin, end))

void softmax_statistics_cuda(const SoftmaxRows& p);
void softmax_gradient_cuda(const SoftmaxRows& p);

/// logits_rj += bias for the row's classes: before the statistics.
void repeat_bias_add_ref(const SoftmaxRows& p);
void repeat_bias_add_cuda(const SoftmaxRows& p);
/// d_bias_r = sum of logits_rj over them, once the logits are gradients with respect to
/// score_rj (weight includes scale).
void repeat_bias_sum_ref(const SoftmaxRows& p);
void repeat_bias_sum_cuda(const SoftmaxRows& p);

/// y = x / max(|x|, eps), norm[r] = max(|x|, eps); [N, E].
struct L2Normalize {
  const void* x = nullptr;    // forward
  void* y = nullptr;          // forward writes, backward reads
  float* norm = nullptr;      // [N]: forward writes, backward reads
  const void* d_y = nullptr;  // backward
  void* d_x = nullptr;        // backward: (d_y - (d_y . y) y) / norm; may be d_y
  int64_t rows = 0, width = 0;
  double eps = 1e-12;
  Element element = Element::kFloat32;
  void* stream = nullptr;
};

void l2_normalize_forward_ref(const L2Normalize& p);
void l2_normalize_backward_ref(const L2Normalize& p);
TAUTLINE_ISA_KERNEL(void l2_normalize_forward_cpu(const L2Normalize& p, int64_t begin, int64_t end),
                    l2_normalize_forward_cpu(p, begin, end))
TAUTLINE_ISA_KERNEL(void l2_normalize_backward_cpu(const L2Normalize& p, int64_t begin,
                                                   int64_t end),
                    l2_normalize_backward_cpu(p, begin, end))
void l2_normalize_forward_cuda(const L2Normalize& p);
void l2_normalize_backward_cuda(const L2Normalize& p);

}  // namespace tautline::kernels
