// Row helpers of the embedding kernels for the CPU: convert, add, prefetch. Included by
// NAME_cpu.cpp only, into the namespace of the instruction set.
#pragma once

#include <cstdint>
#include <cstring>
#include <immintrin.h>
#include <type_traits>

#include "tautline/kernels/element.h"

namespace tautline::kernels::TAUTLINE_ISA {
namespace {

constexpr int64_t kPrefetchAhead = 8;  // rows; random rows of a table miss every cache

inline void prefetch_row(const char* row, int64_t bytes) {
  for (int64_t b = 0; b < bytes && b < 1024; b += 64) __builtin_prefetch(row + b);
}

/// out[c] = (or +=) in[c], in FP32.
template <bool add, class T>
inline void load_row(const T* in, int64_t width, float* out) {
  int64_t c = 0;
  if constexpr (std::is_same_v<T, Float16>) {
    for (; c + 8 <= width; c += 8) {
      __m256 value = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + c)));
      if constexpr (add) value = _mm256_add_ps(_mm256_loadu_ps(out + c), value);
      _mm256_storeu_ps(out + c, value);
    }
  }
  for (; c < width; ++c) out[c] = add ? out[c] + to_float(in[c]) : to_float(in[c]);
}

/// out[c] = in[c] rounded to T.
template <class T>
inline void store_row(const float* in, int64_t width, T* out) {
  int64_t c = 0;
  if constexpr (std::is_same_v<T, Float16>) {
    for (; c + 8 <= width; c += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + c),
                       _mm256_cvtps_ph(_mm256_loadu_ps(in + c), _MM_FROUND_TO_NEAREST_INT));
  }
  for (; c < width; ++c) out[c] = from_float<T>(in[c]);
}

constexpr int64_t kColumnBlock = 256;  // columns that a kernel keeps on its stack at a time

}  // namespace
}  // namespace tautline::kernels::TAUTLINE_ISA
