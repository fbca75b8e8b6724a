// Tensor core products of one warp on tiles of 16-bit elements in shared memory (mma.sync m16n8k16,
// sm_80 and up), and what goes with them: swizzled tiles, asynchronous copies, rows in 16 bytes.
//
// A tile has 64 rows of D elements, D / 64 parts of 64 columns one after the other. A part has rows
// of 8 chunks of 16 bytes; chunk c of row r lies at c ^ (r & 7), so that the eight rows which ldmatrix
// reads at once are in eight different banks. (wgmma reads the same layout: swizzled by 128 bytes.)
#pragma once

#include <cstdint>
#include <type_traits>

#include "tautline/kernels/element.h"

namespace tautline::kernels::mma {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// Bytes from the start of a tile.
template <int D>
__device__ __forceinline__ uint32_t place(int row, int chunk) {
  static_assert(D % 64 == 0);
  return static_cast<uint32_t>((chunk >> 3) * (64 * 128) + row * 128 +
                               (((chunk & 7) ^ (row & 7)) << 4));
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

/// From sm_90. Lane l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(const uint32_t (&r)[4], uint32_t address) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

template <class T>
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  if constexpr (std::is_same_v<T, BFloat16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Two values rounded to T; `low` in the low half.
template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t word;
  if constexpr (std::is_same_v<T, BFloat16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

template <class T>
__device__ __forceinline__ float2 unpack(uint32_t word) {
  return {to_float(T{static_cast<uint16_t>(word)}), to_float(T{static_cast<uint16_t>(word >> 16)})};
}

/// Rows [16 m, 16 m + 16), columns [16 k, 16 k + 16) of a row-major tile as the left operand.
template <int D>
__device__ __forceinline__ void left(uint32_t (&a)[4], uint32_t tile, int m, int k, int lane) {
  load_matrices(a, tile + place<D>(16 * m + (lane & 15), 2 * k + (lane >> 4)));
}
/// The same of the tile's transpose.
template <int D>
__device__ __forceinline__ void left_transposed(uint32_t (&a)[4], uint32_t tile, int m, int k,
                                                int lane) {
  load_matrices_transposed(
      a, tile + place<D>(16 * k + (lane & 7) + ((lane >> 4) << 3), 2 * m + ((lane >> 3) & 1)));
}
/// Right operands of columns 16 n + 0..7 (b[0], b[1]) and 16 n + 8..15 (b[2], b[3]), depth [16 k,
/// 16 k + 16), of the transpose of a row-major tile: its rows are the columns.
template <int D>
__device__ __forceinline__ void right_of_rows(uint32_t (&b)[4], uint32_t tile, int n, int k,
                                              int lane) {
  load_matrices(
      b, tile + place<D>(16 * n + (lane & 7) + ((lane >> 4) << 3), 2 * k + ((lane >> 3) & 1)));
}
/// The same of the tile itself: its rows are the depth.
template <int D>
__device__ __forceinline__ void right_of_columns(uint32_t (&b)[4], uint32_t tile, int n, int k,
                                                 int lane) {
  load_matrices_transposed(b, tile + place<D>(16 * k + (lane & 15), 2 * n + (lane >> 4)));
}

/// Four words of each of a quad's four lanes, transposed: word i of lane q becomes word q of lane i.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4], int lane) {
  const bool odd = lane & 1, upper = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i + 2], 2);
    (upper ? w[i] : w[i + 2]) = got;
  }
}

/// 16 rows of sums [16, 8 N], as the products leave them, rounded to T and stored 16 bytes a lane;
/// rows from `rows` on are left out.
template <class T, int N>
__device__ __forceinline__ void store_rows(const float (&sum)[N][4], T* out, int64_t stride,
                                           int rows, int lane) {
  const int row = lane >> 2, quad = lane & 3;
#pragma unroll
  for (int group = 0; group < N; group += 4)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        w[i] = pack<T>(sum[group + i][2 * half], sum[group + i][2 * half + 1]);
      transpose_quad(w, lane);
      if (row + 8 * half < rows)
        *reinterpret_cast<uint4*>(out + (row + 8 * half) * stride + 8 * (group + quad)) =
            make_uint4(w[0], w[1], w[2], w[3]);
    }
}

/// 16 rows of 64 columns, as the products leave them, as rows of a tile's part that starts at `to`, on a
/// boundary of 8 rows. word(n): a thread's numbers 2 n and 2 n + 1, of row lane / 4 + n % 2 * 8. From sm_90.
template <class Word>
__device__ __forceinline__ void put_rows(uint32_t to, int lane, const Word& word) {
  // stmatrix takes row l % 16 of 8 columns from lane l.
  const uint32_t line = to + (lane & 15) * 128;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    const uint32_t w[4] = {word(2 * j), word(2 * j + 1), word(2 * j + 2), word(2 * j + 3)};
    store_matrices(w, line + ((j + (lane >> 4)) ^ (lane & 7)) * 16);
  }
}

/// 16 bytes to shared memory behind the caller's back; zeros where not `valid`.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
/// Copies since the last call make a batch.
__device__ __forceinline__ void end_batch() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until at most the last kBatches of this thread's are under way.
template <int kBatches>
__device__ __forceinline__ void wait_for_batches() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kBatches) : "memory");
}

__device__ __forceinline__ uint4 load_chunk(uint32_t from) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from)
               : "memory");
  return x;
}
__device__ __forceinline__ void store_chunk(uint32_t to, const uint4& x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}

/// Barrier `id` (from 1) of `threads` threads of a thread block.
__device__ __forceinline__ void sync_threads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace tautline::kernels::mma
