// How rows of an accumulator leave attention_backward_sm90.cuh, and its bulk copies and turns.
#pragma once

#include <cstdint>

#include "tautline/kernels/attention_backward_sm90_scores.cuh"

namespace tautline::kernels::sm90 {

/// Rows row and row + 8 (where below `rows`) of a 64 x 8 kBlocks accumulator, times `scale`, of each the
/// first `columns`. Four lanes hold a row's pairs of columns; they trade them so that each writes 16
/// bytes.
template <int kBlocks, class E, class Registers>
__device__ __forceinline__ void store_rows(Registers x, E* to, int64_t stride, int row, int rows,
                                           int columns, float scale) {
  const int lane = threadIdx.x & 3;
  const bool odd = lane & 1, upper = lane & 2;
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
      if (inside && 8 * (j + lane) < columns)
        *reinterpret_cast<uint4*>(line + 8 * (j + lane)) = uint4{w[0], w[1], w[2], w[3]};
    }
  }
}
/// The same in FP32: two lanes trade halves of two rows, so that each writes 16 bytes of one. No
/// branches: where a warp could part here, it read parts of d_q before they had come.
template <int kBlocks, class Registers>
__device__ __forceinline__ void store_float_rows(Registers x, float* to, int64_t stride, int row,
                                                 int rows, int columns, float scale) {
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
    if (inside && 8 * j < columns)
      *reinterpret_cast<float4*>(line + 8 * j) = float4{y[0], y[1], y[2], y[3]};
  }
  __syncwarp();
}

/// Bulk copies of shared memory to global memory by one thread, and waiting for them.
__device__ __forceinline__ void bulk_store(float* to, const void* from, int bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;" ::"l"(to),
      "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from))), "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void bulk_add(float* to, const void* from, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;" ::"l"(to),
      "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from))), "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
/// All but the last kPending groups have been carried out.
template <int kPending>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Until `turn` counts `place`; what was written before it was passed on is then seen, by bulk
/// copies too.
__device__ __forceinline__ void await_turn(const int* turn, int place) {
  int now;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
  } while (now != place);
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
/// After bulk_wait<0>, with which come the writes of bulk copies into the thread's view: a further
/// fence costs a seventh of the whole kernel's time.
__device__ __forceinline__ void pass_turn(int* turn, int place) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turn), "r"(place) : "memory");
}

}  // namespace tautline::kernels::sm90
