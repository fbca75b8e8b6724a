// Lookup on the GPU. The bound is memory: rows in, rows out, 8 bytes of id. A warp reads 32 ids at
// once; each group of lanes then has eight 16-byte loads of different rows under way before the
// first store (Little's law: 4.2 TB/s at 800 ns is 26 KB a multiprocessor; 32 warps hold 128 KB).
// Outputs are written past the caches, so that the rows that many ids share stay in them.
#include <cstdio>

#include "tautline/kernels/embedding_lookup.h"
#include "tautline/kernels/normal.h"
#include "tautline/kernels/rows.cuh"

namespace tautline::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kRowsPerBlock = kThreads;  // each warp takes 32 ids
// Rows under way where the types differ: 8 need so many registers that bf16 out of fp32 at E = 64
// fell from 95 to 76 % of the ceiling; 2 is 1 % slower.
constexpr int kConvertFlight = 4;

/// The id of this lane's row; -2 past the end.
__device__ __forceinline__ long long load_id(const int64_t* rows, int64_t count, int64_t n,
                                             int64_t table_rows) {
  if (n >= count) return -2;
  const long long row = __ldcs(reinterpret_cast<const long long*>(rows) + n);
  if (row < -1 || row >= table_rows) bad_row(row, n, table_rows);
  return row;
}

/// Same type in and out: rows of `words` 16-byte words.
template <int G, int C>
__global__ void __launch_bounds__(kThreads)
    copy_rows(const uint4* __restrict__ table, int64_t table_rows, int words,
              const int64_t* __restrict__ rows, int64_t count, uint4* __restrict__ out) {
  constexpr int kGroups = kWarp / G, kFlight = 8 / C < G ? 8 / C : G;
  const int lane = threadIdx.x % G, group = threadIdx.x % kWarp / G;
  const int64_t first = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kWarp * kWarp;
  const long long mine = load_id(rows, count, first + threadIdx.x % kWarp, table_rows);
#pragma unroll 1
  for (int k = 0; k < kWarp; k += kGroups * kFlight) {
    uint4 value[kFlight][C];
    long long id[kFlight];
#pragma unroll
    for (int f = 0; f < kFlight; ++f) {
      id[f] = __shfl_sync(0xffffffffu, mine, k + f * kGroups + group);
#pragma unroll
      for (int c = 0; c < C; ++c) {
        value[f][c] = make_uint4(0, 0, 0, 0);
        if (id[f] >= 0 && c * G + lane < words)
          value[f][c] = __ldg(table + id[f] * words + c * G + lane);
      }
    }
#pragma unroll
    for (int f = 0; f < kFlight; ++f)
#pragma unroll
      for (int c = 0; c < C; ++c)
        if (id[f] >= -1 && c * G + lane < words)
          __stcs(out + (first + k + f * kGroups + group) * words + c * G + lane, value[f][c]);
  }
}

/// Another type out: four columns a lane.
template <class From, class To, int G, int C>
__global__ void __launch_bounds__(kThreads)
    convert_rows(const From* __restrict__ table, int64_t table_rows, int width,
                 const int64_t* __restrict__ rows, int64_t count, To* __restrict__ out) {
  constexpr int kGroups = kWarp / G, kFlight = kConvertFlight / C < 1 ? 1 : kConvertFlight / C;
  const RowLayout<G, C> layout(width);
  const int64_t first = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kWarp * kWarp;
  const long long mine = load_id(rows, count, first + threadIdx.x % kWarp, table_rows);
#pragma unroll 1
  for (int k = 0; k < kWarp; k += kGroups * kFlight) {
    Raw<From, 4> raw[kFlight][C];
    long long id[kFlight];
#pragma unroll
    for (int f = 0; f < kFlight; ++f) {
      id[f] = __shfl_sync(0xffffffffu, mine, k + f * kGroups + layout.group);
#pragma unroll
      for (int c = 0; c < C; ++c) {
        raw[f][c] = zero_raw<From, 4>();
        if (id[f] >= 0 && layout.holds(c))
          raw[f][c] = load_raw<4>(table + id[f] * width + layout.column(c));
      }
    }
#pragma unroll
    for (int f = 0; f < kFlight; ++f)
#pragma unroll
      for (int c = 0; c < C; ++c)
        if (id[f] >= -1 && layout.holds(c))
          store_quad<Reuse::kOnce>(
              out + (first + k + f * kGroups + layout.group) * width + layout.column(c),
              pack_of(raw[f][c]));
  }
}

/// Any width and alignment.
template <class From, class To>
__global__ void lookup_any(const From* table, int64_t table_rows, int64_t width,
                           const int64_t* rows, int64_t count, To* out) {
  const int64_t n = int64_t{blockIdx.x} * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  if (n >= count) return;
  const long long row = load_id(rows, count, n, table_rows);
  for (int64_t c = threadIdx.x % kWarp; c < width; c += kWarp)
    out[n * width + c] = from_float<To>(row < 0 ? 0.f : to_float(table[row * width + c]));
}

/// A group a bag, FP32 sums in the order of the ids, four rows under way.
template <class From, class To, int G, int C>
__global__ void __launch_bounds__(kThreads)
    pool_rows(const From* __restrict__ table, int64_t table_rows, int width,
              const int64_t* __restrict__ rows, const int64_t* __restrict__ offsets, int64_t bags,
              bool mean, To* __restrict__ out) {
  constexpr int kFlight = C == 4 ? 2 : 4;
  const RowLayout<G, C> layout(width);
  const int64_t b = int64_t{blockIdx.x} * (kThreads / G) + threadIdx.x / G;
  if (b >= bags) return;
  const int64_t begin = offsets[b], end = offsets[b + 1];
  Quad sum[C];
#pragma unroll
  for (int c = 0; c < C; ++c) sum[c] = zero_pack();
  for (int64_t n = begin; n < end; n += kFlight) {
    Raw<From, 4> value[kFlight][C];
#pragma unroll
    for (int f = 0; f < kFlight; ++f) {
      const long long id = load_id(rows, end, n + f, table_rows);
#pragma unroll
      for (int c = 0; c < C; ++c)
        value[f][c] = id >= 0 && layout.holds(c)
                          ? load_raw<4>(table + id * width + layout.column(c))
                          : zero_raw<From, 4>();
    }
#pragma unroll
    for (int f = 0; f < kFlight; ++f)
#pragma unroll
      for (int c = 0; c < C; ++c) add(sum[c], pack_of(value[f][c]));
  }
  const float factor = mean && end > begin ? 1.0f / static_cast<float>(end - begin) : 1.0f;
#pragma unroll
  for (int c = 0; c < C; ++c) {
    if (!layout.holds(c)) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[c].v[i] *= factor;
    store_quad<Reuse::kOnce>(out + b * width + layout.column(c), sum[c]);
  }
}

template <class From, class To>
__global__ void pool_any(const From* table, int64_t table_rows, int64_t width, const int64_t* rows,
                         const int64_t* offsets, int64_t bags, bool mean, To* out) {
  const int64_t b = int64_t{blockIdx.x} * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  if (b >= bags) return;
  const int64_t begin = offsets[b], end = offsets[b + 1];
  const float factor = mean && end > begin ? 1.0f / static_cast<float>(end - begin) : 1.0f;
  for (int64_t c = threadIdx.x % kWarp; c < width; c += kWarp) {
    float sum = 0;
    for (int64_t n = begin; n < end; ++n) {
      const long long id = load_id(rows, end, n, table_rows);
      if (id >= 0) sum += to_float(table[id * width + c]);
    }
    out[b * width + c] = from_float<To>(sum * factor);
  }
}

/// A warp a bag; columns stay with their lane.
template <class T>
__global__ void spread_gradients(const T* gradients, const int64_t* offsets, int64_t bags,
                                 int64_t width, bool mean, T* out) {
  const int64_t b = int64_t{blockIdx.x} * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  if (b >= bags) return;
  const int64_t begin = offsets[b], end = offsets[b + 1];
  const float factor = mean && end > begin ? 1.0f / static_cast<float>(end - begin) : 1.0f;
  for (int64_t c = threadIdx.x % kWarp; c < width; c += kWarp) {
    const T value = from_float<T>(to_float(gradients[b * width + c]) * factor);
    for (int64_t n = begin; n < end; ++n) out[n * width + c] = value;
  }
}

template <class T>
__global__ void init_table(T* table, int64_t table_rows, int64_t width, uint64_t seed,
                           uint32_t table_index, int64_t first_row, int64_t stride, float std) {
  const int64_t quads = (width + 3) / 4, total = table_rows * quads;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t row = i / quads, quad = i % quads;
    float value[4];
    initial_quad(seed, table_index, first_row + row * stride, static_cast<uint32_t>(quad), value);
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (4 * quad + k < width) table[row * width + 4 * quad + k] = from_float<T>(std * value[k]);
  }
}

unsigned blocks_for(int64_t count, int64_t per_block) {
  return static_cast<unsigned>(divide_up(count, per_block));
}

/// Same type in and out, where rows are whole 16-byte words: true if launched.
bool launch_copy(const Lookup& p) {
  const int64_t bytes = p.width * element_bytes(p.table_type), words = bytes / 16;
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  if (p.table_type != p.out_type || bytes % 16 != 0 || words > 128 || !aligned(p.table) ||
      !aligned(p.out))
    return false;
  with_layout(4 * words, [&](auto layout) {
    using L = decltype(layout);
    copy_rows<L::kLanes, L::kChunks>
        <<<blocks_for(p.count, kRowsPerBlock), kThreads, 0, stream_of(p.stream)>>>(
            static_cast<const uint4*>(p.table), p.table_rows, static_cast<int>(words), p.rows,
            p.count, static_cast<uint4*>(p.out));
  });
  return true;
}

bool fits_layout(const Lookup& p) {
  return p.width <= kLayoutColumns && packs_fit(p.table, p.table_type, p.width) &&
         packs_fit(p.out, p.out_type, p.width);
}

template <class From, class To>
void launch_convert(const Lookup& p) {
  const auto* table = static_cast<const From*>(p.table);
  auto* out = static_cast<To*>(p.out);
  const cudaStream_t stream = stream_of(p.stream);
  if constexpr (!std::is_same_v<From, To>) {
    if (fits_layout(p))
      return with_layout(p.width, [&](auto layout) {
        using L = decltype(layout);
        convert_rows<From, To, L::kLanes, L::kChunks>
            <<<blocks_for(p.count, kRowsPerBlock), kThreads, 0, stream>>>(
                table, p.table_rows, static_cast<int>(p.width), p.rows, p.count, out);
      });
  }
  lookup_any<<<blocks_for(p.count, kThreads / kWarp), kThreads, 0, stream>>>(
      table, p.table_rows, p.width, p.rows, p.count, out);
}

template <class From, class To>
void launch_pool(const PooledLookup& p) {
  const Lookup& l = p.lookup;
  const auto* table = static_cast<const From*>(l.table);
  auto* out = static_cast<To*>(l.out);
  const cudaStream_t stream = stream_of(l.stream);
  if (fits_layout(l))
    return with_layout(l.width, [&](auto layout) {
      using L = decltype(layout);
      pool_rows<From, To, L::kLanes, L::kChunks>
          <<<blocks_for(p.bags, kThreads / L::kLanes), kThreads, 0, stream>>>(
              table, l.table_rows, static_cast<int>(l.width), l.rows, p.offsets, p.bags, p.mean,
              out);
    });
  pool_any<<<blocks_for(p.bags, kThreads / kWarp), kThreads, 0, stream>>>(
      table, l.table_rows, l.width, l.rows, p.offsets, p.bags, p.mean, out);
}

}  // namespace

void lookup_cuda(const Lookup& p) {
  if (p.count == 0 || p.width == 0) return;
  if (!launch_copy(p))
    with_element(p.table_type, [&](auto from) {
      with_element(p.out_type, [&](auto to) { launch_convert<decltype(from), decltype(to)>(p); });
    });
  check_launch("lookup");
}

void pooled_lookup_cuda(const PooledLookup& p) {
  if (p.bags == 0 || p.lookup.width == 0) return;
  with_element(p.lookup.table_type, [&](auto from) {
    with_element(p.lookup.out_type, [&](auto to) { launch_pool<decltype(from), decltype(to)>(p); });
  });
  check_launch("pooled lookup");
}

void pooled_gradients_cuda(const PooledGradients& p) {
  if (p.bags == 0 || p.width == 0) return;
  with_element(p.type, [&](auto zero) {
    using T = decltype(zero);
    spread_gradients<<<blocks_for(p.bags, kThreads / kWarp), kThreads, 0, stream_of(p.stream)>>>(
        static_cast<const T*>(p.gradients), p.offsets, p.bags, p.width, p.mean,
        static_cast<T*>(p.out));
  });
  check_launch("pooled gradients");
}

void init_rows_cuda(const InitRows& p) {
  if (p.table_rows == 0 || p.width == 0) return;
  with_element(p.type, [&](auto zero) {
    using T = decltype(zero);
    init_table<<<multiprocessors() * 8, kThreads, 0, stream_of(p.stream)>>>(
        static_cast<T*>(p.table), p.table_rows, p.width, p.seed, p.table_index, p.first_row,
        p.stride, p.std);
  });
  check_launch("initial rows");
}

}  // namespace tautline::kernels
