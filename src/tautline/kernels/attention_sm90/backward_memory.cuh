// How rows of an accumulator leave backward.cuh, and turns.
#pragma once

#include <cstdint>

#include "tautline/kernels/attention_sm90/backward_scores.cuh"
#include "tautline/kernels/hopper.cuh"
#include "tautline/kernels/mma.cuh"

namespace tautline::kernels::sm90 {

/// Rows row and row + 8 (where below `rows`) of a 64 x 8 kBlocks accumulator, times `scale`, of each the
/// first `columns`. Four lanes hold a row's pairs of columns; they trade them so that each writes 16
/// bytes.
template <int kBlocks, class E, class Registers>
__device__ __forceinline__ void store_rows(Registers x, E* to, int64_t stride, int row, int rows,
                                           int columns, float scale) {
  const int lane = threadIdx.x & 3;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    E* line = to + (row + 8 * r) * stride;
    const bool inside = row + 8 * r < rows;
#pragma unroll
    for (int j = 0; j < kBlocks; j += 4) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        w[i] = pack<E>(x[4 * (j + i) + 2 * r] * scale, x[4 * (j + i) + 2 * r + 1] * scale);
      mma::transpose_quad(w, lane);
      if (inside && 8 * (j + lane) < columns)
        *reinterpret_cast<uint4*>(line + 8 * (j + lane)) = uint4{w[0], w[1], w[2], w[3]};
    }
  }
}
/// Adds to four numbers in memory, not as one, without an answer.
__device__ __forceinline__ void add_float4(float4* to, float4 x) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x),
               "f"(x.y), "f"(x.z), "f"(x.w)
               : "memory");
}

/// The same in FP32, or added to what is there by one writer: two lanes trade halves of two rows, so that
/// each writes 16 bytes of one.
template <int kBlocks, class Registers>
__device__ __forceinline__ void store_float_rows(Registers x, float* to, int64_t stride, int row,
                                                 int rows, int columns, float scale,
                                                 bool add = false) {
  const int lane = threadIdx.x & 3;
  const bool odd = lane & 1;
  float* line = to + (row + (odd ? 8 : 0)) * stride + 4 * (lane / 2);
  const bool inside = row + (odd ? 8 : 0) < rows;
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = x[4 * j + i] * scale;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float got = __shfl_xor_sync(0xffffffffu, odd ? y[i] : y[i + 2], 1);
      (odd ? y[i] : y[i + 2]) = got;
    }
    if (inside && 8 * j < columns) {
      auto* four = reinterpret_cast<float4*>(line + 8 * j);
      if (add)
        add_float4(four, {y[0], y[1], y[2], y[3]});
      else
        *four = float4{y[0], y[1], y[2], y[3]};
    }
  }
  __syncwarp();
}

/// A warp's 16 rows of a 64 x 64 accumulator, times `scale`, as 16-bit rows in shared memory, swizzled as a
/// tensor map's boxes are; a TMA store may read them.
template <class E, class Registers>
__device__ __forceinline__ void put_rows(Registers x, uint32_t to, float scale) {
  mma::put_rows(to, threadIdx.x & 31,
                [&](int n) { return pack<E>(x[2 * n] * scale, x[2 * n + 1] * scale); });
  hopper::fence_async_shared();
  __syncwarp();
}

/// 16 bytes from memory, past L1, to shared memory; this thread's own await_copies sees them.
__device__ __forceinline__ void copy_async(float4* to, const float4* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/// Until `turn` counts `place`; what was written before it was passed on is then seen.
__device__ __forceinline__ void await_turn(const int* turn, int place) {
  int now;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
  } while (now != place);
}
/// Of what other threads of the CTA have written too, where this one knows of it by a barrier.
__device__ __forceinline__ void pass_turn(int* turn, int place) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turn), "r"(place) : "memory");
}

}  // namespace tautline::kernels::sm90
