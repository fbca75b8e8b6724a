// Parts of attention_backward_sm90.cuh that are not tensor cores: what a score becomes, how rows of
// an accumulator leave, and the pass over o and d_o before the kernel.
#pragma once

#include <cstdint>

#include "tautline/kernels/attention_backward_sm90.h"
#include "tautline/kernels/element.h"

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

/// P = exp(scale s - lse), dS = P (dP - delta). A thread has rows (keys) r, r + 8 and columns
/// (queries) 8 j + 2 (lane % 4) + {0, 1}: numbers 4 j + 2 r + {0, 1}. From here P is in 16 bits, in
/// the gradient too: half the registers, so that the products behind have room.
template <class E>
struct SoftmaxScores {
  static constexpr bool kRows = true, kGates = false;
  float to_log2;
  __device__ SoftmaxScores(float scale, ScoreActivation) : to_log2(scale * 1.44269504089f) {}

  template <int kM, class Registers>
  __device__ __forceinline__ void weights(Registers s, uint32_t* p, uint32_t*, const float* lse,
                                          int lane) const {
#pragma unroll
    for (int j = 0; j < kM / 8; ++j) {
      const float2 shift = *reinterpret_cast<const float2*>(lse + 8 * j + 2 * (lane & 3));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = 4 * j + 2 * r;
        p[i / 2] = pack<E>(exp2_fast(fmaf(s[i], to_log2, -shift.x)),
                           exp2_fast(fmaf(s[i + 1], to_log2, -shift.y)));
      }
    }
  }
  template <int kM, class Registers>
  __device__ __forceinline__ void gradients(const uint32_t* p, Registers dp, uint32_t* ds,
                                            const float* delta, int lane) const {
#pragma unroll
    for (int j = 0; j < kM / 8; ++j) {
      const float2 d = *reinterpret_cast<const float2*>(delta + 8 * j + 2 * (lane & 3));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = 4 * j + 2 * r;
        const float2 x = unpack<E>(p[i / 2]);
        ds[i / 2] = pack<E>(x.x * (dp[i] - d.x), x.y * (dp[i + 1] - d.y));
      }
    }
  }
};

/// Rows row and row + 8 (where below `rows`) of a 64 x 8 kBlocks accumulator, times `scale`. Four
/// lanes hold a row's pairs of columns; they trade them so that each writes 16 bytes.
template <int kBlocks, class E, class Registers>
__device__ __forceinline__ void store_rows(Registers x, E* to, int64_t stride, int row, int rows,
                                           float scale) {
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
      if (inside) *reinterpret_cast<uint4*>(line + 8 * (j + lane)) = uint4{w[0], w[1], w[2], w[3]};
    }
  }
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
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/// Until `turn` counts `place`; what was written before it was passed on is then seen, by bulk
/// copies too.
__device__ __forceinline__ void await_turn(const int* turn, int place) {
  int now;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
  } while (now != place);
  asm volatile("fence.proxy.async;" ::: "memory");
}
__device__ __forceinline__ void pass_turn(int* turn, int place) {
  asm volatile("fence.proxy.async;" ::: "memory");
  __threadfence();
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turn), "r"(place) : "memory");
}

/// One block a tile of kM queries: [tiles, H, 2, M] of lse / ln 2 and of delta = sum d_o o (rows
/// beyond the sequence: infinity and 0), and d_q = 0 where the tile sees no key.
template <class E, int kD, int kM, bool kSoftmax>
__global__ void __launch_bounds__(256)
    backward_rows(const __grid_constant__ AttentionSm90Backward p, float* out) {
  const int64_t x = blockIdx.x;
  int64_t low = 0, high = p.sequences - 1;  // the last sequence whose tiles start at x or before
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (p.q_offsets[middle] / kM + middle <= x)
      low = middle;
    else
      high = middle - 1;
  }
  const int64_t q_start = p.q_offsets[low], nq = p.q_offsets[low + 1] - q_start;
  const int64_t nk = p.k_offsets[low + 1] - p.k_offsets[low];
  const int64_t m0 = (x - q_start / kM - low) * kM;
  if (m0 < 0 || m0 >= nq) return;
  const int64_t m1 = m0 + kM < nq ? m0 + kM : nq;
  const bool blind = visible_keys(p.window, m1 - 1, nq, nk).last == 0;
  if (!kSoftmax && !blind) return;
  constexpr int kLanes = kD / 8;  // threads of a row, 16 bytes each
  const int piece = threadIdx.x % kLanes;
  for (int i = threadIdx.x / kLanes; i < kM * p.heads; i += 256 / kLanes) {
    const int row = i / p.heads, head = i % p.heads;
    const int64_t token = q_start + m0 + row;
    const bool inside = m0 + row < nq;
    if (blind && inside)
      *reinterpret_cast<uint4*>(static_cast<E*>(p.d_q.data) + token * p.d_q.token_stride +
                                head * p.d_q.head_stride + 8 * piece) = uint4{0, 0, 0, 0};
    if constexpr (kSoftmax) {
      float sum = 0, lse = INFINITY;
      if (inside) {
        union Piece {
          uint4 bits;
          E x[8];
          __device__ Piece() {}
        } o, d;
        o.bits = *reinterpret_cast<const uint4*>(static_cast<const E*>(p.o.data) +
                                                 token * p.o.token_stride + head * p.o.head_stride +
                                                 8 * piece);
        d.bits = *reinterpret_cast<const uint4*>(static_cast<const E*>(p.d_o.data) +
                                                 token * p.d_o.token_stride +
                                                 head * p.d_o.head_stride + 8 * piece);
#pragma unroll
        for (int c = 0; c < 8; ++c)
          sum = fmaf(static_cast<float>(o.x[c]), static_cast<float>(d.x[c]), sum);
        lse = p.lse[head * p.rows + token] * 1.44269504089f;
        if (lse == -INFINITY) lse = INFINITY;
      }
#pragma unroll
      for (int lanes = kLanes / 2; lanes > 0; lanes /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
      if (piece == 0) {
        float* to = out + (x * p.heads + head) * 2 * kM + row;
        to[0] = lse;
        to[kM] = sum;
      }
    }
  }
}

}  // namespace tautline::kernels::sm90
