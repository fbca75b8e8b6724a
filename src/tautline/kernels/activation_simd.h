// Vectors of the functions that activations are made of. For *_cpu.cpp only (simd.h).
#pragma once

#include "tautline/kernels/simd.h"

namespace tautline::kernels::TAUTLINE_ISA {

/// 1 / (1 + exp(-x)).
TAUTLINE_ALWAYS_INLINE Vf sigmoid(Vf x) { return 1.0f / (1.0f + vexp(-x)); }

/// Phi(x) and exp(-x^2 / 2). With z = |x| / sqrt 2 and t = 1 / (1 + z / 2): erfc(z) = t f(t)
/// exp(-z^2), f a polynomial fitted here (weighted least squares, relative error 1.5e-7 in FP32),
/// so that the negative tail keeps its relative precision and one exponential serves both.
struct Gauss {
  Vf cdf, bell;
};
TAUTLINE_ALWAYS_INLINE Gauss gauss(Vf x) {
  const Vf z = (x < 0.0f ? -x : x) * 0.70710678f;
  const Vf t = 1.0f / (1.0f + 0.5f * z);
  const Vf bell = vexp(-0.5f * x * x);
  Vf f = t * -0.05889091f + 0.28370258f;
  f = f * t - 0.48538491f;
  f = f * t + 0.27597940f;
  f = f * t - 0.02517844f;
  f = f * t + 0.20207012f;
  f = f * t + 0.24326095f;
  f = f * t + 0.28235349f;
  f = f * t + 0.28208768f;
  const Vf tail = 0.5f * f * t * bell;
  return {x < 0.0f ? tail : 1.0f - tail, bell};
}

}  // namespace tautline::kernels::TAUTLINE_ISA
