// 16 bytes of a row as FP32 values, and sums over a warp or a block in a fixed order.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "tautline/kernels/element.h"
#include "tautline/kernels/launch.cuh"

namespace tautline::kernels {

/// Elements of T in 16 bytes.
template <class T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

template <int V, class T>
__device__ __forceinline__ void load_vector(const T* at, float (&out)[V]) {
  if constexpr (V == 1) {
    out[0] = to_float(*at);
  } else {
    static_assert(V == kVector<T>);
    const uint4 raw = *reinterpret_cast<const uint4*>(at);
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4) {
        out[i] = __uint_as_float(words[i]);
      } else {
        out[2 * i] = to_float(T{static_cast<uint16_t>(words[i])});
        out[2 * i + 1] = to_float(T{static_cast<uint16_t>(words[i] >> 16)});
      }
    }
  }
}

template <int V, class T>
__device__ __forceinline__ void store_vector(T* at, const float (&value)[V]) {
  if constexpr (V == 1) {
    *at = from_float<T>(value[0]);
  } else {
    static_assert(V == kVector<T>);
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4)
        words[i] = __float_as_uint(value[i]);
      else
        words[i] = uint32_t{from_float<T>(value[2 * i]).bits} |
                   uint32_t{from_float<T>(value[2 * i + 1]).bits} << 16;
    }
    *reinterpret_cast<uint4*>(at) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

/// V float32 values (a weight, a bias) beside V elements of a row.
template <int V>
__device__ __forceinline__ void load_floats(const float* at, float (&out)[V]) {
  if constexpr (V == 1) {
    out[0] = *at;
  } else {
#pragma unroll
    for (int i = 0; i < V; i += 4) {
      const float4 q = *reinterpret_cast<const float4*>(at + i);
      out[i] = q.x;
      out[i + 1] = q.y;
      out[i + 2] = q.z;
      out[i + 3] = q.w;
    }
  }
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

/// True where each of the pointers (null is fine) and the row's bytes are whole 16-byte words.
template <class... Pointers>
bool vectors_fit(int64_t width, int64_t bytes, const Pointers*... at) {
  return width * bytes % 16 == 0 && ((reinterpret_cast<uintptr_t>(at) % 16 == 0) && ...);
}

/// out[d] = sum over p of partials[p * stride + d], in the order of p in 8 interleaved strands: the
/// second level of a column sum. One block of 32 columns.
__global__ inline void sum_columns(const float* partials, int64_t count, int64_t stride,
                                   int64_t width, float* out) {
  __shared__ float strands[8][kWarp + 1];
  const int64_t d = int64_t{blockIdx.x} * kWarp + threadIdx.x;
  float sum = 0;
  if (d < width)
#pragma unroll 4
    for (int64_t p = threadIdx.y; p < count; p += 8) sum += partials[p * stride + d];
  strands[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || d >= width) return;
  float total = 0;
  for (int j = 0; j < 8; ++j) total += strands[j][threadIdx.x];
  out[d] = total;
}

inline void launch_sum_columns(const float* partials, int64_t count, int64_t stride, int64_t width,
                               float* out, cudaStream_t stream) {
  if (width == 0) return;
  sum_columns<<<static_cast<unsigned>(divide_up(width, int64_t{kWarp})), dim3(kWarp, 8), 0,
                stream>>>(partials, count, stride, width, out);
  check_launch("column sums");
}

}  // namespace tautline::kernels
