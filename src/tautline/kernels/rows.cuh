// Rows on the GPU: a group of G lanes holds a row, each lane C chunks of V neighbouring columns
// (chunk c of lane l: columns V (c G + l) ...), in FP32 registers. V is 4, or 8 where everything is
// 16 bits wide: a warp's access is one contiguous piece of a row, and narrow rows do not cost
// instructions twice.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <type_traits>

#include <cuda_runtime.h>

#include "tautline/kernels/element.h"
#include "tautline/kernels/launch.cuh"

namespace tautline::kernels {

/// V values of a row.
template <int V>
struct Pack {
  float v[V];
};
using Quad = Pack<4>;

template <int V = 4>
__device__ __forceinline__ Pack<V> zero_pack() {
  Pack<V> pack;
#pragma unroll
  for (int i = 0; i < V; ++i) pack.v[i] = 0.f;
  return pack;
}

template <int V>
__device__ __forceinline__ void add(Pack<V>& a, const Pack<V>& b) {
#pragma unroll
  for (int i = 0; i < V; ++i) a.v[i] += b.v[i];
}

/// How long a line is worth keeping in the caches.
enum class Reuse { kOnce, kAgain };

/// V elements as they lie in memory. Several of them are loaded before the first is converted: a
/// conversion beside its load makes the thread wait for each load in turn (seen: 1.4x the time).
template <class T, int V>
struct Raw {
  static constexpr int kWords = V * static_cast<int>(sizeof(T)) / 4;
  uint32_t word[kWords];
};

template <class T, int V>
__device__ __forceinline__ Raw<T, V> zero_raw() {
  Raw<T, V> raw;
#pragma unroll
  for (int i = 0; i < Raw<T, V>::kWords; ++i) raw.word[i] = 0;
  return raw;
}

template <int V, Reuse reuse = Reuse::kAgain, class T>
__device__ __forceinline__ Raw<T, V> load_raw(const T* at) {
  Raw<T, V> raw;
  if constexpr (Raw<T, V>::kWords == 2) {
    const auto* p = reinterpret_cast<const uint2*>(at);
    const uint2 w = reuse == Reuse::kOnce ? __ldcs(p) : *p;
    raw.word[0] = w.x;
    raw.word[1] = w.y;
  } else {
    const auto* p = reinterpret_cast<const uint4*>(at);
#pragma unroll
    for (int i = 0; i < Raw<T, V>::kWords; i += 4) {
      const uint4 w = reuse == Reuse::kOnce ? __ldcs(p + i / 4) : p[i / 4];
      raw.word[i] = w.x;
      raw.word[i + 1] = w.y;
      raw.word[i + 2] = w.z;
      raw.word[i + 3] = w.w;
    }
  }
  return raw;
}

template <class T, int V>
__device__ __forceinline__ Pack<V> pack_of(const Raw<T, V>& raw) {
  Pack<V> pack;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if constexpr (sizeof(T) == 4)
      pack.v[i] = __uint_as_float(raw.word[i]);
    else
      pack.v[i] = to_float(T{static_cast<uint16_t>(raw.word[i / 2] >> (i % 2 * 16))});
  }
  return pack;
}

template <Reuse reuse = Reuse::kAgain, class T, int V>
__device__ __forceinline__ void store_pack(T* at, const Pack<V>& pack) {
  Raw<T, V> raw;
#pragma unroll
  for (int i = 0; i < Raw<T, V>::kWords; ++i) {
    if constexpr (sizeof(T) == 4)
      raw.word[i] = __float_as_uint(pack.v[i]);
    else
      raw.word[i] = uint32_t{from_float<T>(pack.v[2 * i]).bits} |
                    uint32_t{from_float<T>(pack.v[2 * i + 1]).bits} << 16;
  }
  if constexpr (Raw<T, V>::kWords == 2) {
    const uint2 w = make_uint2(raw.word[0], raw.word[1]);
    auto* p = reinterpret_cast<uint2*>(at);
    if constexpr (reuse == Reuse::kOnce)
      __stcs(p, w);
    else
      *p = w;
  } else {
    auto* p = reinterpret_cast<uint4*>(at);
#pragma unroll
    for (int i = 0; i < Raw<T, V>::kWords; i += 4) {
      const uint4 w = make_uint4(raw.word[i], raw.word[i + 1], raw.word[i + 2], raw.word[i + 3]);
      if constexpr (reuse == Reuse::kOnce)
        __stcs(p + i / 4, w);
      else
        p[i / 4] = w;
    }
  }
}

template <Reuse reuse = Reuse::kAgain, class T>
__device__ __forceinline__ Quad load_quad(const T* at) {
  return pack_of(load_raw<4, reuse>(at));
}
template <Reuse reuse = Reuse::kAgain, class T>
__device__ __forceinline__ void store_quad(T* at, const Quad& quad) {
  store_pack<reuse>(at, quad);
}

/// G lanes a row, C chunks a lane: rows up to V G C columns.
template <int G, int C, int V = 4>
struct RowLayout {
  static constexpr int kLanes = G, kChunks = C;
  int lane, group;  // of this thread: in its group, of its group in the warp
  int width;
  __device__ explicit RowLayout(int width)
      : lane(static_cast<int>(threadIdx.x) % G),
        group(static_cast<int>(threadIdx.x) % kWarp / G),
        width(width) {}
  __device__ int column(int chunk) const { return V * (chunk * G + lane); }
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

/// True where rows of `width` elements of this type can be read V columns at a time.
inline bool packs_fit(const void* base, Element element, int64_t width, int64_t columns = 4) {
  const int64_t bytes = std::min<int64_t>(16, columns * element_bytes(element));
  return width % columns == 0 &&
         reinterpret_cast<uintptr_t>(base) % static_cast<uintptr_t>(bytes) == 0;
}

constexpr int64_t kLayoutColumns = 512;  // the widest row that a layout holds in registers

/// Calls function(constants G, C) for a width up to kLayoutColumns.
template <int G, int C>
struct Layout {
  static constexpr int kLanes = G, kChunks = C;
};
template <int V = 4, class Function>
void with_layout(int64_t width, Function&& function) {
  if (width <= 8 * V) return function(Layout<8, 1>{});
  if (width <= 16 * V) return function(Layout<16, 1>{});
  if (width <= 32 * V) return function(Layout<32, 1>{});
  if (V == 8 || width <= 64 * V) return function(Layout<32, 2>{});
  if constexpr (V == 4) function(Layout<32, 4>{});
}

/// Prints the id that broke the contract and ends the kernel with an error.
__device__ __noinline__ inline void bad_row(long long row, long long position,
                                            long long table_rows) {
  printf("tautline: row %lld (id %lld) is outside the table of %lld rows\n", row, position,
         table_rows);
  __trap();
}

}  // namespace tautline::kernels
