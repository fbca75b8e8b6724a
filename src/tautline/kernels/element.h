// Element types of tensors that kernels read and write, and their conversion to FP32 and back
// (round to nearest even). The same functions compile for CPU and GPU and give the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define TAUTLINE_ELEMENT_FUNCTION __host__ __device__ __forceinline__
#else
// Always inlined: this header is compiled for several instruction sets, and the linker must not
// take one set's copy for another's.
#define TAUTLINE_ELEMENT_FUNCTION inline __attribute__((always_inline))
#endif
#if !defined(__CUDA_ARCH__) && defined(__F16C__)
#include <immintrin.h>
#endif

namespace tautline::kernels {

enum class Element { kFloat32, kBFloat16, kFloat16 };

inline constexpr int64_t element_bytes(Element element) {
  return element == Element::kFloat32 ? 4 : 2;
}

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

TAUTLINE_ELEMENT_FUNCTION uint32_t float_bits(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

TAUTLINE_ELEMENT_FUNCTION float float_of_bits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

TAUTLINE_ELEMENT_FUNCTION float to_float(float value) { return value; }

TAUTLINE_ELEMENT_FUNCTION float to_float(BFloat16 value) {
  return float_of_bits(uint32_t{value.bits} << 16);
}

TAUTLINE_ELEMENT_FUNCTION float to_float(Float16 value) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(value.bits));
#elif defined(__F16C__)
  return _cvtsh_ss(value.bits);
#else
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16, magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | magnitude << 13);  // inf, NaN
  // Shifted into FP32's fields the exponent is 112 too small; the product also mends subnormals.
  return float_of_bits(sign | float_bits(float_of_bits(magnitude << 13) * 0x1p112f));
#endif
}

template <class T>
T from_float(float value);

template <>
TAUTLINE_ELEMENT_FUNCTION float from_float<float>(float value) {
  return value;
}

template <>
TAUTLINE_ELEMENT_FUNCTION BFloat16 from_float<BFloat16>(float value) {
#if defined(__CUDA_ARCH__)
  return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
#else
  const uint32_t bits = float_bits(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return {static_cast<uint16_t>(is_nan ? 0x7fffu : rounded)};
#endif
}

template <>
TAUTLINE_ELEMENT_FUNCTION Float16 from_float<Float16>(float value) {
#if defined(__CUDA_ARCH__)
  return {__half_as_ushort(__float2half_rn(value))};
#elif defined(__F16C__)
  return {static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT))};
#else
  const uint32_t bits = float_bits(value), sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds to inf
  uint32_t half;
  if (magnitude < 0x38800000u) {  // subnormal: let FP32 addition do the rounding
    half = float_bits(float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
#endif
}

/// Calls `function(T{})` with the C++ type of `element`.
template <class Function>
decltype(auto) with_element(Element element, Function&& function) {
  switch (element) {
    case Element::kBFloat16:
      return function(BFloat16{});
    case Element::kFloat16:
      return function(Float16{});
    case Element::kFloat32:
      break;
  }
  return function(float{});
}

}  // namespace tautline::kernels
