// What a score becomes in backward.cuh: 16-bit weights, and their gradients.
#pragma once

#include <cstdint>
#include <cutlass/numeric_types.h>
#include <type_traits>

#include "tautline/kernels/attention_sm90/backward.h"

namespace tautline::kernels::sm90 {

template <class E>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t word;
  if constexpr (sizeof(E) == 2 && std::is_same_v<E, cutlass::bfloat16_t>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <class E>
__device__ __forceinline__ float2 unpack(uint32_t word) {
  if constexpr (std::is_same_v<E, cutlass::bfloat16_t>) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&word));
  }
}

/// Weights or slopes times gradients, rounded once.
template <class E>
__device__ __forceinline__ uint32_t multiply(uint32_t weights, float low, float high) {
  const float2 x = unpack<E>(weights);
  return pack<E>(x.x * low, x.y * high);
}

/// P = exp(scale s - lse), dS = P (dP - delta), where the products have brought lse and delta. From here
/// P is in 16 bits, in the gradient too: half the registers, so that the products behind have room.
template <class E>
struct SoftmaxScores {
  static constexpr bool kRows = true, kGates = false;
  /// Weights and dS times these are the function's; `scale` as in the problem.
  __device__ __forceinline__ static float weights_lack(float) { return 1; }
  static constexpr float kSlopesLack = 1;
  static constexpr uint32_t kHiddenGate = 0;  // two slopes that make dS 0
  float to_log2;
  template <class Arguments>
  __device__ explicit SoftmaxScores(const Arguments& p) : to_log2(p.scale * 1.44269504089f) {}

  template <int kM, class Registers>
  __device__ __forceinline__ void weights(Registers s, uint32_t* p, uint32_t*) const {
#pragma unroll
    for (int i = 0; i < kM / 2; i += 2)
      p[i / 2] = pack<E>(exp2_fast(s[i] * to_log2), exp2_fast(s[i + 1] * to_log2));
  }
  template <int kM, class Registers>
  __device__ __forceinline__ void gradients(const uint32_t* p, Registers dp, uint32_t* ds) const {
#pragma unroll
    for (int i = 0; i < kM / 2; i += 2) ds[i / 2] = multiply<E>(p[i / 2], dp[i], dp[i + 1]);
  }
};

/// Weights of hidden pairs become 0, and slopes what makes their dS 0: of keys `first_key` and
/// first_key + 8 of a sequence with the `rows` queries from m0 on.
template <class C, class Arguments>
__device__ __forceinline__ void mask(const Arguments& p, int nq, int nk, int first_key, int m0,
                                     int rows, uint32_t* weights, uint32_t* gates) {
  const int shift = nk - nq, column = 2 * (threadIdx.x & 3);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int key = first_key + 8 * r;
    const int low = max(-1, key - shift - p.right - m0) - column;
    const int high = (key < nk ? min(rows, key - shift + p.left + 1 - m0) : -1) - column;
#pragma unroll
    for (int j = 0; j < C::kM / 8; ++j) {
      const uint32_t keep = (8 * j >= low && 8 * j < high ? 0x0000ffffu : 0u) |
                            (8 * j + 1 >= low && 8 * j + 1 < high ? 0xffff0000u : 0u);
      weights[2 * j + r] &= keep;
      if constexpr (C::Scores::kGates)
        gates[2 * j + r] = (gates[2 * j + r] & keep) | (C::Scores::kHiddenGate & ~keep);
    }
  }
}

}  // namespace tautline::kernels::sm90
