// Activations of the feed-forward part, element by element, one memory pass each way.
//   SwiGLU (Shazeer 2020, equation 6): out = silu(x[:, :F]) * x[:, F:]; x is [T, 2F], out [T, F].
//   GELU (Hendrycks & Gimpel 2016, the exact form): out = x * Phi(x); x is [T, F], out [T, F].
// `bias` [width of x] is added to x first, where given.
//
// T rows, F output width.
#pragma once

#include <cstdint>

#include "tautline/kernels/element.h"
#include "tautline/kernels/isa.h"

namespace tautline::kernels {

enum class ActivationKind : int32_t { kSwiglu, kGelu };

/// Rows of one partial sum of the bias gradient on the CPU.
inline constexpr int64_t kActivationBlockRows = 64;

struct Activation {
  ActivationKind kind = ActivationKind::kSwiglu;
  const void* x = nullptr;      // [T, 2F] or [T, F]
  const float* bias = nullptr;  // [2F] or [F], or null
  void* out = nullptr;          // [T, F]: written by the forward
  const void* d_out = nullptr;  // [T, F]: backward
  void* d_x = nullptr;          // as x: backward
  float* d_bias = nullptr;      // as bias: backward
  float* workspace = nullptr;   // [partials, width of x]: partial sums of d_bias
  int64_t partials = 0;  // CPU: ceil(T / kActivationBlockRows); CUDA: activation_partials_cuda
  int64_t rows = 0, width = 0;          // T, F
  Element element = Element::kFloat32;  // of x, out, d_out, d_x
  void* stream = nullptr;

  int64_t input_width() const { return kind == ActivationKind::kSwiglu ? 2 * width : width; }
};

void activation_forward_ref(const Activation& p);
void activation_backward_ref(const Activation& p);

/// Rows [begin, end).
TAUTLINE_ISA_KERNEL(void activation_forward_cpu(const Activation& p, int64_t begin, int64_t end),
                    activation_forward_cpu(p, begin, end))
/// Blocks [begin, end) of kActivationBlockRows rows: d_x and, with a bias, the block's partial sum.
TAUTLINE_ISA_KERNEL(void activation_backward_cpu(const Activation& p, int64_t begin, int64_t end),
                    activation_backward_cpu(p, begin, end))
/// Adds the partial sums in their order into d_bias; call once, after all blocks.
TAUTLINE_ISA_KERNEL(void activation_backward_finish_cpu(const Activation& p),
                    activation_backward_finish_cpu(p))

void activation_forward_cuda(const Activation& p);
int64_t activation_partials_cuda(int64_t rows, int64_t input_width);
void activation_backward_cuda(const Activation& p);  // with its finish

}  // namespace tautline::kernels
