// Rows on the GPU: a group of G lanes holds a row, each lane C chunks of four neighbouring columns
// (chunk c of lane l: columns 4 (c G + l) ...), in FP32 registers. Loads and stores are 16 bytes a lane
// for float32 and 8 for 16-bit types, so that a warp's access is one contiguous piece of a row.
#pragma once

#include <cstdint>
#include <cstdio>
#include <type_traits>

#include <cuda_runtime.h>

#include "tautline/kernels/element.h"
#include "tautline/kernels/launch.cuh"

namespace tautline::kernels {

struct Quad {
  float v[4];
};

__device__ __forceinline__ Quad zero_quad() { return {{0.f, 0.f, 0.f, 0.f}}; }

__device__ __forceinline__ void add(Quad& a, const Quad& b) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a.v[i] += b.v[i];
}

/// How long a line is worth keeping in the caches.
enum class Reuse { kOnce, kAgain };

/// Four elements as they lie in memory. Several of them are loaded before the first is converted: a
/// conversion beside its load makes the thread wait for each load in turn (seen: 1.4x the time).
template <class T>
using Raw = std::conditional_t<sizeof(T) == 4, float4, uint2>;

template <class T>
__device__ __forceinline__ Raw<T> zero_raw() {
  if constexpr (sizeof(T) == 4)
    return make_float4(0.f, 0.f, 0.f, 0.f);
  else
    return make_uint2(0u, 0u);
}

template <Reuse reuse = Reuse::kAgain, class T>
__device__ __forceinline__ Raw<T> load_raw(const T* at) {
  const auto* p = reinterpret_cast<const Raw<T>*>(at);
  if constexpr (reuse == Reuse::kOnce)
    return __ldcs(p);
  else
    return *p;
}

template <class T>
__device__ __forceinline__ Quad quad_of(const Raw<T>& raw) {
  if constexpr (sizeof(T) == 4)
    return {{raw.x, raw.y, raw.z, raw.w}};
  else
    return {{to_float(T{static_cast<uint16_t>(raw.x)}),
             to_float(T{static_cast<uint16_t>(raw.x >> 16)}),
             to_float(T{static_cast<uint16_t>(raw.y)}),
             to_float(T{static_cast<uint16_t>(raw.y >> 16)})}};
}

template <Reuse reuse = Reuse::kAgain, class T>
__device__ __forceinline__ Quad load_quad(const T* at) {
  return quad_of<T>(load_raw<reuse>(at));
}

template <Reuse reuse = Reuse::kAgain>
__device__ __forceinline__ void store_quad(float* at, const Quad& q) {
  const float4 value = make_float4(q.v[0], q.v[1], q.v[2], q.v[3]);
  auto* p = reinterpret_cast<float4*>(at);
  if constexpr (reuse == Reuse::kOnce)
    __stcs(p, value);
  else
    *p = value;
}

template <class T>
__device__ __forceinline__ uint32_t packed(float low, float high) {
  return uint32_t{from_float<T>(low).bits} | uint32_t{from_float<T>(high).bits} << 16;
}

template <Reuse reuse = Reuse::kAgain, class T>
__device__ __forceinline__ void store_quad(T* at, const Quad& q) {
  const uint2 value = make_uint2(packed<T>(q.v[0], q.v[1]), packed<T>(q.v[2], q.v[3]));
  auto* p = reinterpret_cast<uint2*>(at);
  if constexpr (reuse == Reuse::kOnce)
    __stcs(p, value);
  else
    *p = value;
}

/// G lanes a row, C chunks a lane: rows up to 4 G C columns.
template <int G, int C>
struct RowLayout {
  static constexpr int kLanes = G, kChunks = C, kRowsPerWarp = kWarp / G;
  int lane, group;  // of this thread: in its group, of its group in the warp
  int width;
  __device__ explicit RowLayout(int width)
      : lane(static_cast<int>(threadIdx.x) % G),
        group(static_cast<int>(threadIdx.x) % kWarp / G),
        width(width) {}
  __device__ int column(int chunk) const { return 4 * (chunk * G + lane); }
  __device__ bool holds(int chunk) const { return column(chunk) < width; }
};

/// Sum over the lanes of a group: a balanced tree over neighbours, the same for every lane.
template <int G>
__device__ __forceinline__ float group_sum(float value) {
#pragma unroll
  for (int offset = 1; offset < G; offset *= 2)
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

/// True where rows of `width` elements of this type can be read four columns at a time.
inline bool quads_fit(const void* base, Element element, int64_t width) {
  return width % 4 == 0 &&
         reinterpret_cast<uintptr_t>(base) % (4 * static_cast<uintptr_t>(element_bytes(element))) ==
             0;
}

constexpr int64_t kLayoutColumns = 512;  // the widest row that a layout holds in registers

/// Calls function(RowLayout-shaped constants G, C) for a width up to kLayoutColumns.
template <int G, int C>
struct Layout {
  static constexpr int kLanes = G, kChunks = C;
};
template <class Function>
void with_layout(int64_t width, Function&& function) {
  if (width <= 32) return function(Layout<8, 1>{});
  if (width <= 64) return function(Layout<16, 1>{});
  if (width <= 128) return function(Layout<32, 1>{});
  if (width <= 256) return function(Layout<32, 2>{});
  return function(Layout<32, 4>{});
}

/// Prints the id that broke the contract and ends the kernel with an error.
__device__ __noinline__ inline void bad_row(long long row, long long position,
                                            long long table_rows) {
  printf("tautline: row %lld (id %lld) is outside the table of %lld rows\n", row, position,
         table_rows);
  __trap();
}

}  // namespace tautline::kernels
