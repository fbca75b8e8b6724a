// Standard normal values as a pure function of random bits, with the same bits on CPU and GPU.
//
// Box-Muller with our own logarithm, sine and cosine: libm and CUDA round those differently. Every
// addition of a product is an explicit fused multiply-add and the square root is correctly rounded
// on both sides, so no compiler flag changes a bit. Error against exact arithmetic: below 3e-7
// relative in the radius and 2e-7 absolute in the angle; |value| <= 5.77.
#pragma once

#include <cmath>
#include <cstdint>

#include "tautline/base/random.h"
#include "tautline/kernels/element.h"

namespace tautline::kernels {

/// ln(u) for u in (0, 1]: u = m 2^e, m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m-1)/(m+1)).
TAUTLINE_ELEMENT_FUNCTION float log_unit(float u) {
  const uint32_t bits = float_bits(u) - 0x3f3504f3u;  // sqrt(1/2): brings m to the range above
  const float e = static_cast<float>(static_cast<int32_t>(bits) >> 23);
  const float m = float_of_bits((bits & 0x7fffffu) + 0x3f3504f3u);
  const float s = (m - 1.0f) / (m + 1.0f), z = s * s;
  float p = fmaf(z, 0.111111111f, 0.142857143f);
  p = fmaf(z, p, 0.2f);
  p = fmaf(z, p, 0.333333333f);
  const float zs = z * s;
  return fmaf(e, 0.693147181f, 2.0f * fmaf(zs, p, s));
}

/// sin and cos of 2 pi t, t = bits / 2^32 - 1/8: the quadrant from the two high bits, the rest as
/// an angle within pi/4 of it.
TAUTLINE_ELEMENT_FUNCTION void sincos_turn(uint32_t bits, float* sine, float* cosine) {
  const int32_t centred = static_cast<int32_t>((bits & 0x3fffffffu) >> 7) - (1 << 22);
  const float x = static_cast<float>(2 * centred + 1) * (0.785398163f * 0x1p-23f);  // +-pi/4
  const float z = x * x;
  float s = fmaf(z, 2.75573192e-6f, -1.98412698e-4f);
  s = fmaf(z, s, 8.33333333e-3f);
  s = fmaf(z, s, -0.166666667f);
  const float zx = z * x;
  s = fmaf(zx, s, x);
  float c = fmaf(z, 2.48015873e-5f, -1.38888889e-3f);
  c = fmaf(z, c, 4.16666667e-2f);
  c = fmaf(z, c, -0.5f);
  c = fmaf(z, c, 1.0f);
  const uint32_t quadrant = bits >> 30;
  const float a = (quadrant & 1u) ? c : s, b = (quadrant & 1u) ? s : c;
  *sine = (quadrant & 2u) ? -a : a;
  *cosine = ((quadrant + 1u) & 2u) ? -b : b;
}

/// Two independent standard normal values of 64 random bits.
TAUTLINE_ELEMENT_FUNCTION void normal_pair(uint32_t radius_bits, uint32_t angle_bits, float* first,
                                           float* second) {
  const float u = static_cast<float>(2u * (radius_bits >> 9) + 1u) * 0x1p-24f;  // never 0 or 1
  const float radius = sqrtf(-2.0f * log_unit(u));
  float sine, cosine;
  sincos_turn(angle_bits, &sine, &cosine);
  *first = radius * cosine;
  *second = radius * sine;
}

/// Initial values of columns 4 `quad` .. 4 `quad` + 3 of a row, standard deviation 1. Keyed by
/// (seed, RandomUse::kParameter, table, global row, column): the same on any number of ranks.
/// The high bit of the third word keeps table rows apart from streams of `Random`. table < 2^15,
/// row < 2^48.
TAUTLINE_ELEMENT_FUNCTION void initial_quad(uint64_t seed, uint32_t table, int64_t row,
                                            uint32_t quad, float (&value)[4]) {
  const auto high = static_cast<uint32_t>(static_cast<uint64_t>(row) >> 32);
  const Philox4 bits =
      philox(seed, quad, static_cast<uint32_t>(row), 0x80000000u | table << 16 | high,
             static_cast<uint32_t>(RandomUse::kParameter));
  normal_pair(bits.v[0], bits.v[1], &value[0], &value[1]);
  normal_pair(bits.v[2], bits.v[3], &value[2], &value[3]);
}

}  // namespace tautline::kernels
