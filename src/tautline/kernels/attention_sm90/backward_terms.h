// How lse and delta reach backward.cuh's products: as a few more columns. S - lse is one product of
// [K, c] with [Q, t], where c are constants and t are 16-bit terms with sum_i c_i t_i = -lse: so no
// thread asks shared memory for its queries' numbers. Each of lse and delta has three terms, which
// hold what FP32 holds.
#pragma once

#include <cstdint>

#include "tautline/kernels/element.h"

namespace tautline::kernels::sm90 {

/// Of a query: three of -lse / scale, three of -delta, two zeros.
constexpr int kRowTerms = 8;

/// Constants c, falling powers of two. In fp16 the first gives the range (2^31 for lse, 2^24 for
/// delta), the last the spacing of small numbers (2^-24, 2^-35).
template <bool kHalf>
struct TermScales {
  float lse[3] = {kHalf ? 32768.0f : 1.0f, kHalf ? 16.0f : 1.0f, 1.0f};
  float delta[3] = {kHalf ? 256.0f : 1.0f, 1.0f, kHalf ? 0x1p-11f : 1.0f};
};

}  // namespace tautline::kernels::sm90
