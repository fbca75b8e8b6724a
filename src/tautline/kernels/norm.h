// Root-mean-square norm (Zhang & Sennrich 2019, equation 4) and layer norm (Ba et al. 2016,
// equation 3), alone or fused with the residual addition before them:
//   s = x + residual;  RMS: y = s * rstd * w, rstd = 1 / sqrt(mean(s^2) + eps)
//                      layer: y = (s - mean) * rstd * w + b, rstd = 1 / sqrt(var(s) + eps)
// One memory pass forward; one backward, which also adds the gradient that reaches s directly.
//
// T rows, D width. Statistics and weight gradients in FP32 (weights are FP32 on both devices).
#pragma once

#include <cstdint>

#include "tautline/kernels/element.h"
#include "tautline/kernels/isa.h"

namespace tautline::kernels {

enum class NormKind : int32_t { kRms, kLayer };

/// Rows of one partial sum of the weight gradients on the CPU: fixed, so that bits do not depend on
/// threads.
inline constexpr int64_t kNormBlockRows = 64;

struct NormForward {
  const void* x = nullptr;         // [T, D]
  const void* residual = nullptr;  // [T, D] or null
  const float* weight = nullptr;   // [D]
  const float* bias = nullptr;     // [D]; layer norm only
  void* sum = nullptr;    // [T, D]: x + residual rounded to `element`, when residual is given
  void* out = nullptr;    // [T, D]
  float* mean = nullptr;  // [T]; layer norm only
  float* rstd = nullptr;  // [T]
  int64_t rows = 0, width = 0;
  double eps = 1e-6;
  NormKind kind = NormKind::kRms;
  Element element = Element::kFloat32;  // of x, residual, sum, out
  void* stream = nullptr;
};

struct NormBackward {
  const void* d_out = nullptr;    // [T, D]
  const void* d_sum = nullptr;    // [T, D] or null: gradient that reached s past the norm
  const void* s = nullptr;        // [T, D]: what was normalised (x, or sum)
  const float* weight = nullptr;  // [D]
  const float* mean = nullptr;    // [T]; layer norm only
  const float* rstd = nullptr;    // [T]
  void* d_x = nullptr;            // [T, D]: gradient of s (of x and of residual alike)
  float* d_weight = nullptr;      // [D]
  float* d_bias = nullptr;        // [D]; layer norm only
  // Partial sums of d_weight and d_bias, [partials, 2, D]. CPU: partials = ceil(T /
  // kNormBlockRows). CUDA: as many as norm_partials_cuda says.
  float* workspace = nullptr;
  int64_t partials = 0;
  int64_t rows = 0, width = 0;
  NormKind kind = NormKind::kRms;
  Element element = Element::kFloat32;
  void* stream = nullptr;
};

void norm_forward_ref(const NormForward& p);
void norm_backward_ref(const NormBackward& p);

/// Rows [begin, end).
TAUTLINE_ISA_KERNEL(void norm_forward_cpu(const NormForward& p, int64_t begin, int64_t end),
                    norm_forward_cpu(p, begin, end))
/// Blocks [begin, end) of kNormBlockRows rows: d_x and the partial sums of each block.
TAUTLINE_ISA_KERNEL(void norm_backward_cpu(const NormBackward& p, int64_t begin, int64_t end),
                    norm_backward_cpu(p, begin, end))
/// Adds the partial sums in their order into d_weight and d_bias; call once, after all blocks.
TAUTLINE_ISA_KERNEL(void norm_backward_finish_cpu(const NormBackward& p),
                    norm_backward_finish_cpu(p))

void norm_forward_cuda(const NormForward& p);
int64_t norm_partials_cuda(int64_t rows, int64_t width);
void norm_backward_cuda(const NormBackward& p);  // with its finish

}  // namespace tautline::kernels
