// Dropout whose mask is a pure function of (seed, step, site, sample, position, channel): the same
// on any number of ranks and threads and on both devices, and recomputed by the backward.
//
//   out = residual + (x + bias) * keep / (1 - p),   keep = uniform01(bits) >= p
//
// The key of a call is the first 64 bits of philox(seed; step, step >> 32, site, kDropout); the
// bits of channels 4c .. 4c+3 are philox(key; c, position, sample, sample >> 32).
//
// T rows (tokens), D channels. Precision: FP32.
#pragma once

#include <cstdint>

#include "tautline/base/random.h"
#include "tautline/kernels/element.h"
#include "tautline/kernels/isa.h"

namespace tautline::kernels {

inline uint64_t dropout_key(uint64_t seed, uint64_t step, uint32_t site) {
  const Philox4 block = philox(seed, static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32),
                               site, static_cast<uint32_t>(RandomUse::kDropout));
  return uint64_t{block.v[1]} << 32 | block.v[0];
}

/// Rows of one partial sum of the bias gradient on the CPU.
inline constexpr int64_t kDropoutBlockRows = 64;

struct Dropout {
  const void* x = nullptr;            // [T, D]; the backward reads d_out here
  const void* residual = nullptr;     // [T, D] or null; forward only
  const float* bias = nullptr;        // [D] or null; forward only
  void* out = nullptr;                // [T, D]; the backward writes d_x here
  const int64_t* sample = nullptr;    // [T] index of the token's sample in the step
  const int64_t* position = nullptr;  // [T] position of the token in its sequence, below 2^32
  // Backward with a bias: d_bias [D] by partial sums in workspace [partials, D]. CPU: partials =
  // ceil(T / kDropoutBlockRows); CUDA: dropout_partials_cuda.
  float* d_bias = nullptr;
  float* workspace = nullptr;
  int64_t partials = 0;
  uint64_t key = 0;  // dropout_key(seed, step, site)
  double p = 0.0;    // [0, 1)
  int64_t rows = 0, width = 0;
  Element element = Element::kFloat32;  // of x, residual, out
  void* stream = nullptr;
};

void dropout_ref(const Dropout& p);

/// Blocks [begin, end) of kDropoutBlockRows rows, with the partial sums of d_bias where asked.
TAUTLINE_ISA_KERNEL(void dropout_cpu(const Dropout& p, int64_t begin, int64_t end),
                    dropout_cpu(p, begin, end))
/// Adds the partial sums in their order into d_bias; call once, after all blocks.
TAUTLINE_ISA_KERNEL(void dropout_finish_cpu(const Dropout& p), dropout_finish_cpu(p))

void dropout_cuda(const Dropout& p);  // with its finish
int64_t dropout_partials_cuda(int64_t rows, int64_t width);

}  // namespace tautline::kernels
