// Vectors of FP32 for the *_cpu.cpp files only: GCC vector types of the width that TAUTLINE_ISA
// has, and the few functions that every kernel needs. All of it lives in namespace v3 or v4, so
// that code for AVX-512 is never linked in for a machine without it.
#pragma once

#include <cstdint>
#include <cstring>
#include <immintrin.h>

namespace tautline::kernels::TAUTLINE_ISA {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#else
inline constexpr int kLanes = 8;
#endif
using Vf = float __attribute__((vector_size(kLanes * 4)));
using Vi = int32_t __attribute__((vector_size(kLanes * 4)));
using Vu = uint32_t __attribute__((vector_size(kLanes * 4)));

#define TAUTLINE_ALWAYS_INLINE [[gnu::always_inline]] inline

TAUTLINE_ALWAYS_INLINE Vf splat(float value) { return Vf{} + value; }

TAUTLINE_ALWAYS_INLINE Vf load(const float* p) {
  Vf v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
TAUTLINE_ALWAYS_INLINE void store(float* p, Vf v) { std::memcpy(p, &v, sizeof v); }

/// The first n < kLanes elements; the others are `fill`.
TAUTLINE_ALWAYS_INLINE Vf load_first(const float* p, int64_t n, float fill = 0.0f) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vf>(_mm512_mask_loadu_ps(reinterpret_cast<__m512>(splat(fill)),
                                                   static_cast<__mmask16>((1u << n) - 1), p));
#else
  Vf v = splat(fill);
  for (int64_t i = 0; i < n; ++i) v[i] = p[i];
  return v;
#endif
}
TAUTLINE_ALWAYS_INLINE void store_first(float* p, Vf v, int64_t n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), reinterpret_cast<__m512>(v));
#else
  for (int64_t i = 0; i < n; ++i) p[i] = v[i];
#endif
}

TAUTLINE_ALWAYS_INLINE Vf select(Vi mask, Vf yes, Vf no) { return mask ? yes : no; }
TAUTLINE_ALWAYS_INLINE Vf vmax(Vf a, Vf b) { return a > b ? a : b; }

/// Sum and maximum over lanes, in a fixed tree.
TAUTLINE_ALWAYS_INLINE float reduce_add(Vf v) {
  float lane[kLanes];
  store(lane, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  return lane[0];
}
TAUTLINE_ALWAYS_INLINE float reduce_max(Vf v) {
  float lane[kLanes];
  store(lane, v);
  float result = lane[0];
  for (int i = 1; i < kLanes; ++i) result = lane[i] > result ? lane[i] : result;
  return result;
}

/// exp(x) within 2 units in the last place for x in [-87.3, 88]; 0 below, exp(88) above, NaN stays
/// NaN. x = n ln 2 + r with |r| <= ln 2 / 2 (ln 2 in two parts, Cody & Waite 1980), Taylor's series
/// of degree 7 for exp(r): remainder r^8 / 8! < 6e-9, under a tenth of FP32's unit.
TAUTLINE_ALWAYS_INLINE Vf vexp(Vf x) {
  constexpr float kLowest = -87.33654f, kHighest = 88.0f;
  const Vi below = x < kLowest;
  x = x < kLowest ? splat(kLowest) : x;
  x = x > kHighest ? splat(kHighest) : x;
  const Vf shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer
  const Vf n = shifted - 12582912.0f;
  Vf r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Vf y = r * (1.0f / 5040) + 1.0f / 720;
  y = y * r + 1.0f / 120;
  y = y * r + 1.0f / 24;
  y = y * r + 1.0f / 6;
  y = y * r + 0.5f;
  y = y * r + 1.0f;
  y = y * r + 1.0f;
  // 2^n: the integer is in the low bits of `shifted`.
  const Vi exponent = reinterpret_cast<Vi>(shifted) - 0x4B400000;
  y = y * reinterpret_cast<Vf>((exponent + 127) << 23);
  return select(below, Vf{}, y);
}

TAUTLINE_ALWAYS_INLINE const float* floats(const void* p) { return static_cast<const float*>(p); }
TAUTLINE_ALWAYS_INLINE float* floats(void* p) { return static_cast<float*>(p); }

/// Calls body(offset, lanes) for offset = 0, kLanes, ...; lanes < kLanes only in the last call.
template <class Body>
TAUTLINE_ALWAYS_INLINE void for_lanes(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
  if (i < n) body(i, static_cast<int>(n - i));
}
TAUTLINE_ALWAYS_INLINE Vf load_some(const float* p, int lanes, float fill = 0.0f) {
  return lanes == kLanes ? load(p) : load_first(p, lanes, fill);
}
TAUTLINE_ALWAYS_INLINE void store_some(float* p, Vf v, int lanes) {
  if (lanes == kLanes) {
    store(p, v);
  } else {
    store_first(p, v, lanes);
  }
}

}  // namespace tautline::kernels::TAUTLINE_ISA
