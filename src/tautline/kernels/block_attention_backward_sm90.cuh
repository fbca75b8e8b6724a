// What a warp of block attention's backward on Hopper does with its 16 rows: rotary positions on
// fragments, softmax's gradient, squares of scores to shared memory.
//
// A lane holds rows lane / 4 and that plus 8, and of every 32 channels the eight from 8 * (lane % 4):
// both channels of every pair that it turns. So its angles are the same for every tile, block and
// head, and stay in registers: those of its first row; the second row's are eight places further.
//
// A turned tile has its channels in another order than memory: channel 8 q + 2 j + e of 32 (e: 0, 1)
// is column 8 j + 2 q + e. Products over channels do not mind; those with channels as columns leave
// each lane eight neighbours, which go to memory in 16 bytes.
#pragma once

#include "tautline/kernels/block_attention_fused.cuh"

namespace tautline::kernels::fused {

/// A lane's part of 16 rows of D columns: word i of half h is columns 8 i + 2 (lane % 4), + 1 of row
/// lane / 4 + 8 h.
template <int D>
using Words = uint32_t[2][D / 8];

/// The turns of a lane's D / 8 channel pairs, two and two.
template <int D, RopeLayout kRope>
struct Turns {
  static constexpr int kCount = D / 16, kBytes = kCount * 4 * 16;
  float4 first[kCount];  // by the place of the lane's first row in the block: cos, sin, cos, sin
  const float4* step;    // [kCount, 4]: by 8 places; for this lane of four

  /// The first of the two channel pairs.
  static __device__ __forceinline__ int pair(int i, int quad) {
    if constexpr (kRope == RopeLayout::kHalfSplit) return i / 4 * 32 + 8 * quad + i % 4 * 2;
    return i / 2 * 16 + 4 * quad + i % 2 * 2;
  }
  static __device__ __forceinline__ float4 by(int places, int c, float log2_frequency) {
    const auto angle = [&](int pair) {
      return static_cast<float>(places) * exp2f(static_cast<float>(pair) * log2_frequency);
    };
    float4 turn;
    sincosf(angle(c), &turn.y, &turn.x);
    sincosf(angle(c + 1), &turn.w, &turn.z);
    return turn;
  }
  /// `steps` of the thread block: kBytes.
  __device__ __forceinline__ Turns(float4* steps, int row, int lane, float log2_frequency)
      : step(steps + (lane & 3)) {
    for (int i = threadIdx.x; i < kCount * 4; i += blockDim.x)
      steps[i] = by(8, pair(i / 4, i % 4), log2_frequency);
#pragma unroll
    for (int i = 0; i < kCount; ++i) first[i] = by(row, pair(i, lane & 3), log2_frequency);
    __syncthreads();
  }
  /// Of pairs i (two of them) in one of the lane's rows.
  __device__ __forceinline__ float4 at(int i, int half) const {
    const float4 a = first[i];
    if (half == 0) return a;
    const float4 b = step[4 * i];
    return make_float4(a.x * b.x - a.y * b.y, a.y * b.x + a.x * b.y, a.z * b.z - a.w * b.w,
                       a.w * b.z + a.z * b.w);
  }
};
template <int D>
struct Turns<D, RopeLayout::kNone> {
  static constexpr int kBytes = 0;
  __device__ __forceinline__ Turns(float4*, int, int, float) {}
  __device__ __forceinline__ float4 at(int, int) const { return {1, 0, 1, 0}; }
};

/// Which two words, or sums of four columns, pairs i are in.
template <int D, RopeLayout kRope>
__device__ __forceinline__ constexpr int low_of(int i) {
  return kRope == RopeLayout::kHalfSplit ? i : 2 * i;
}
template <int D, RopeLayout kRope>
__device__ __forceinline__ constexpr int high_of(int i) {
  return kRope == RopeLayout::kHalfSplit ? i + D / 16 : 2 * i + 1;
}

/// Two channels of each of two words (a, b): pairs across the words, or within each.
template <RopeLayout kRope>
__device__ __forceinline__ void turn_two_pairs(float& a0, float& a1, float& b0, float& b1,
                                               const float4& t) {
  if constexpr (kRope == RopeLayout::kHalfSplit) {
    turn_pair(a0, b0, t.x, t.y);
    turn_pair(a1, b1, t.z, t.w);
  } else {
    turn_pair(a0, a1, t.x, t.y);
    turn_pair(b0, b1, t.z, t.w);
  }
}

/// A warp's rows of tiles as they lie in memory, turned, back in the same place in the order of
/// columns; `words` keeps the last tile's. turn(i, half) as Turns::at.
template <int D, class T, RopeLayout kRope, int kTiles, class Turn>
__device__ __forceinline__ void turn_rows(const uint32_t (&tile)[kTiles], int m, int lane,
                                          Words<D>& words, Turn&& turn) {
  const int row = 16 * m + (lane >> 2);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t x[kTiles][D / 8];
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int group = 0; group < D / 32; ++group) {
        const uint4 raw =
            mma::load_chunk(tile[n] + mma::place<D>(row + 8 * half, 4 * group + (lane & 3)));
        x[n][4 * group] = raw.x, x[n][4 * group + 1] = raw.y;
        x[n][4 * group + 2] = raw.z, x[n][4 * group + 3] = raw.w;
      }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const float4 t = turn(i, half);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        uint32_t &low = x[n][low_of<D, kRope>(i)], &high = x[n][high_of<D, kRope>(i)];
        float2 a = mma::unpack<T>(low), b = mma::unpack<T>(high);
        turn_two_pairs<kRope>(a.x, a.y, b.x, b.y, t);
        low = mma::pack<T>(a.x, a.y), high = mma::pack<T>(b.x, b.y);
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int group = 0; group < D / 32; ++group)
        mma::store_matrices(
            {x[n][4 * group], x[n][4 * group + 1], x[n][4 * group + 2], x[n][4 * group + 3]},
            tile[n] + mma::place<D>(16 * m + 8 * half + (lane & 7), 4 * group + (lane >> 3)));
#pragma unroll
    for (int i = 0; i < D / 8; ++i) words[half][i] = x[kTiles - 1][i];
  }
}

/// Sums of columns turned; turn(i, half) as Turns::at.
template <int D, RopeLayout kRope, class Turn>
__device__ __forceinline__ void turn_columns(float (&sum)[D / 8][4], Turn&& turn) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      float(&a)[4] = sum[low_of<D, kRope>(i)], (&b)[4] = sum[high_of<D, kRope>(i)];
      turn_two_pairs<kRope>(a[2 * half], a[2 * half + 1], b[2 * half], b[2 * half + 1],
                            turn(i, half));
    }
}

/// 16 rows of sums of columns to memory, channels in their order, 16 bytes a lane; rows from `rows`
/// on are left out.
template <class T, int N>
__device__ __forceinline__ void store_columns(const float (&sum)[N][4], T* out, int64_t stride,
                                              int rows, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = (lane >> 2) + 8 * half;
    if (row >= rows) continue;
#pragma unroll
    for (int n = 0; n < N; n += 4)
      *reinterpret_cast<uint4*>(out + row * stride + 8 * (n + (lane & 3))) =
          make_uint4(mma::pack<T>(sum[n][2 * half], sum[n][2 * half + 1]),
                     mma::pack<T>(sum[n + 1][2 * half], sum[n + 1][2 * half + 1]),
                     mma::pack<T>(sum[n + 2][2 * half], sum[n + 2][2 * half + 1]),
                     mma::pack<T>(sum[n + 3][2 * half], sum[n + 3][2 * half + 1]));
  }
}

/// A warp's rows of [64, 64], rounded as left operands of four steps, to a tile.
__device__ __forceinline__ void store_square(const uint32_t (&x)[4][4], uint32_t tile, int m,
                                             int lane) {
#pragma unroll
  for (int k = 0; k < 4; ++k)
    mma::store_matrices(x[k], tile + mma::place<kRows>(16 * m + (lane & 15), 2 * k + (lane >> 4)));
}

/// d_p [16, 64] to d_s = p (d_p - sum(p d_p)) scale.
__device__ __forceinline__ void gradient_of_scores(float (&d)[8][4], const float (&p)[8][4],
                                                   float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float delta = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) delta += p[n][e] * d[n][e];
    delta += __shfl_xor_sync(0xffffffffu, delta, 1);
    delta += __shfl_xor_sync(0xffffffffu, delta, 2);
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e)
        d[n][e] = p[n][e] * fmaf(d[n][e], scale, -delta * scale);
  }
}

}  // namespace tautline::kernels::fused
