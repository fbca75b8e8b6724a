// What the fused block attention kernels share: a group of four warps takes a block of one head, its
// tiles in shared memory, each warp 16 of its rows. Persistent thread blocks of several groups, one
// a multiprocessor, so that loads of some groups run under the products of others; the groups share
// a table of rotary angles.
#pragma once

#include <cmath>
#include <type_traits>

#include "tautline/kernels/block_attention.cuh"
#include "tautline/kernels/mma.cuh"

namespace tautline::kernels::fused {

constexpr int kRows = kAttentionBlock, kGroupThreads = 128;

struct Problem {
  BlockAttention p;
  BlockPlaces blocks;
  int64_t items;         // blocks * heads
  float log2_frequency;  // -2 log2(base) / D: channel pair c turns by 2^(c * this) a place
};

/// Cosines and sines of a block's places and channel pairs, in shared memory. Pairs c and c + 1 (c
/// even) lie together in 16 bytes, `two`; those are placed so that neither the threads that load a
/// tile nor those that hold sums of it meet in a bank.
template <int D>
struct Angles {
  static constexpr int kBytes = kRows * D / 2 * 8;
  float4* two;

  static __device__ __forceinline__ int place(int row, int c) {
    const int v = c / 8, j = c % 8 / 2;
    if constexpr (D == 128) return row * (D / 4) + j * 8 + (v ^ (row & 7) ^ (2 * j));
    return row * (D / 4) + ((j * 4 + v) ^ (6 * (row & 1)) ^ (j >> 1));
  }
  __device__ void fill(float log2_frequency) const {
    for (int i = threadIdx.x; i < kRows * D / 4; i += blockDim.x) {
      const int row = i / (D / 4), c = i % (D / 4) * 2;
      float4 turn;
      const auto angle = [&](int pair) {
        return static_cast<float>(row) * exp2f(static_cast<float>(pair) * log2_frequency);
      };
      sincosf(angle(c), &turn.y, &turn.x);
      sincosf(angle(c + 1), &turn.w, &turn.z);
      two[place(row, c)] = turn;
    }
  }
  /// Of channel pairs c (even) and c + 1.
  __device__ __forceinline__ float4 operator()(int row, int c) const { return two[place(row, c)]; }
};

/// The turn of channel pair c by `position` places, any number of them.
__device__ __forceinline__ float2 turn_at(int64_t position, int c, float log2_frequency) {
  constexpr double kTurn = 6.283185307179586;
  const double angle = static_cast<double>(position) *
                       static_cast<double>(exp2f(static_cast<float>(c) * log2_frequency));
  float2 turn;
  sincosf(static_cast<float>(angle - kTurn * rint(angle / kTurn)), &turn.y, &turn.x);
  return turn;
}
__device__ __forceinline__ float4 two_turns_at(int64_t position, int c, float log2_frequency) {
  const float2 a = turn_at(position, c, log2_frequency),
               b = turn_at(position, c + 1, log2_frequency);
  return make_float4(a.x, a.y, b.x, b.y);
}

__device__ __forceinline__ void turn_pair(float& a, float& b, float cosine, float sine) {
  const float was = a;
  a = was * cosine - b * sine;
  b = b * cosine + was * sine;
}

/// Which rows and channels of a tile a thread of a group loads: two vectors of 8 channels, D / 2
/// apart, of kPasses rows.
template <int D>
struct Loads {
  static constexpr int kVectors = D / 16, kStep = kGroupThreads / kVectors, kPasses = kRows / kStep;
  int row, channel;
  __device__ explicit Loads(int thread) : row(thread / kVectors), channel(thread % kVectors * 8) {}
};

/// A tile straight to shared memory.
template <int D, class T>
__device__ __forceinline__ void load_plain(const T* from, int64_t stride, int rows, uint32_t tile,
                                           int thread) {
  const Loads<D> at(thread);
#pragma unroll
  for (int i = 0; i < Loads<D>::kPasses; ++i) {
    const int row = at.row + i * Loads<D>::kStep;
    const bool valid = row < rows;
    const T* source = from + (valid ? row * stride : 0) + at.channel;
    mma::copy_async(tile + mma::place<D>(row, at.channel / 8), source, valid);
    mma::copy_async(tile + mma::place<D>(row, at.channel / 8 + D / 16), source + D / 2, valid);
  }
}

template <class T>
__device__ __forceinline__ void unpack(const uint4& raw, float (&x)[8]) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = to_float(T{static_cast<uint16_t>(words[i])});
    x[2 * i + 1] = to_float(T{static_cast<uint16_t>(words[i] >> 16)});
  }
}
template <class T>
__device__ __forceinline__ uint4 packed(const float (&x)[8]) {
  return make_uint4(mma::pack<T>(x[0], x[1]), mma::pack<T>(x[2], x[3]), mma::pack<T>(x[4], x[5]),
                    mma::pack<T>(x[6], x[7]));
}

/// 16 elements of a row turned: the two vectors of 8 channels that a thread loads; turn(c): of channel
/// pairs c and c + 1.
template <int D, class T, RopeLayout kRope>
__device__ __forceinline__ void turn_vectors(uint4& low, uint4& high, const float4 (&turn)[4]) {
  float a[8], b[8];
  unpack<T>(low, a);
  unpack<T>(high, b);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float4 t = turn[k];
    if constexpr (kRope == RopeLayout::kHalfSplit) {
      turn_pair(a[2 * k], b[2 * k], t.x, t.y);
      turn_pair(a[2 * k + 1], b[2 * k + 1], t.z, t.w);
    } else {
      float* x = k < 2 ? a + 4 * k : b + 4 * (k - 2);
      turn_pair(x[0], x[1], t.x, t.y);
      turn_pair(x[2], x[3], t.z, t.w);
    }
  }
  low = packed<T>(a);
  high = packed<T>(b);
}

/// Turns what this thread has loaded of some tiles, all by turn(row, c) of channel pairs c and c + 1.
/// What is read together is in flight together.
template <int D, class T, RopeLayout kRope, int kTiles, class Turn>
__device__ __forceinline__ void turn_tiles(const uint32_t (&tile)[kTiles], int thread,
                                           Turn&& turn) {
  const Loads<D> at(thread);
  constexpr int kAtOnce = 2;
  static_assert(Loads<D>::kPasses % kAtOnce == 0);
#pragma unroll
  for (int first = 0; first < Loads<D>::kPasses; first += kAtOnce) {
    uint4 x[kAtOnce][kTiles][2];
    float4 t[kAtOnce][4];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = at.row + (first + i) * Loads<D>::kStep;
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          x[i][n][half] =
              mma::load_chunk(tile[n] + mma::place<D>(row, at.channel / 8 + half * (D / 16)));
#pragma unroll
      for (int k = 0; k < 4; ++k)
        t[i][k] = kRope == RopeLayout::kHalfSplit
                      ? turn(row, at.channel + 2 * k)
                      : turn(row, at.channel / 2 + k / 2 * (D / 4) + k % 2 * 2);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = at.row + (first + i) * Loads<D>::kStep;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        turn_vectors<D, T, kRope>(x[i][n][0], x[i][n][1], t[i]);
#pragma unroll
        for (int half = 0; half < 2; ++half)
          mma::store_chunk(tile[n] + mma::place<D>(row, at.channel / 8 + half * (D / 16)),
                           x[i][n][half]);
      }
    }
  }
}

/// Sums [16, D] turned; turn(row of the 16, c): of channel pairs c and c + 1.
template <int D, RopeLayout kRope, class Turn>
__device__ __forceinline__ void turn_sums(float (&sum)[D / 8][4], int lane, Turn&& turn) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = (lane >> 2) + 8 * half;
    if constexpr (kRope == RopeLayout::kHalfSplit) {
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        const float4 t = turn(row, 8 * n + 2 * (lane & 3));
        turn_pair(sum[n][2 * half], sum[n + D / 16][2 * half], t.x, t.y);
        turn_pair(sum[n][2 * half + 1], sum[n + D / 16][2 * half + 1], t.z, t.w);
      }
    } else if constexpr (kRope == RopeLayout::kInterleaved) {
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const float4 t = turn(row, 4 * n + (lane & 2));
        turn_pair(sum[n][2 * half], sum[n][2 * half + 1], lane & 1 ? t.z : t.x,
                  lane & 1 ? t.w : t.y);
      }
    }
  }
}

/// sum[16 rows of m, 64] += a b^T over D, both tiles; columns [0, 16 * pairs) only.
template <int D, class T>
__device__ __forceinline__ void product_of_rows(float (&sum)[8][4], uint32_t a, uint32_t b, int m,
                                                int pairs, int lane) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    uint32_t x[4];
    mma::left<D>(x, a, m, k, lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n >= pairs) continue;
      uint32_t y[4];
      mma::right_of_rows<D>(y, b, n, k, lane);
      mma::multiply<T>(sum[2 * n], x, y[0], y[1]);
      mma::multiply<T>(sum[2 * n + 1], x, y[2], y[3]);
    }
  }
}

/// Sums of 16 rows and 16 columns, rounded, as the left operand.
template <class T>
__device__ __forceinline__ void as_left(uint32_t (&a)[4], const float (&low)[4],
                                        const float (&high)[4]) {
  a[0] = mma::pack<T>(low[0], low[1]);
  a[1] = mma::pack<T>(low[2], low[3]);
  a[2] = mma::pack<T>(high[0], high[1]);
  a[3] = mma::pack<T>(high[2], high[3]);
}

/// sum[16, D] += w b: w [16, 64] in registers, b a tile of 64 rows; the first 16 * pairs count.
template <int D, class T>
__device__ __forceinline__ void weighted_rows(float (&sum)[D / 8][4], const float (&w)[8][4],
                                              uint32_t b, int pairs, int lane) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k >= pairs) continue;
    uint32_t x[4];
    as_left<T>(x, w[2 * k], w[2 * k + 1]);
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      uint32_t y[4];
      mma::right_of_columns<D>(y, b, n, k, lane);
      mma::multiply<T>(sum[2 * n], x, y[0], y[1]);
      mma::multiply<T>(sum[2 * n + 1], x, y[2], y[3]);
    }
  }
}

/// 2^x for x <= 0; 0 where that is subnormal.
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Scores [16 rows of m, 64] to probabilities; log2_scale = scale * log2(e). Rows without a key
/// are 0. Keys from `rows` on, and (causal) behind the row, are not seen. kFlush: subnormal ones
/// become 0, in fewer instructions.
template <bool kFlush = false>
__device__ __forceinline__ void soften(float (&score)[8][4], int m, int rows, bool causal,
                                       float log2_scale, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = 16 * m + (lane >> 2) + 8 * half;
    const int keys = causal ? min(i + 1, rows) : rows;
    float top = -INFINITY;
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = score[n][2 * half + e];
        if (8 * n + 2 * (lane & 3) + e >= keys) x = -INFINITY;
        top = fmaxf(top, x);
      }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float shift = top * log2_scale;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = score[n][2 * half + e];
        const float power = fmaf(x, log2_scale, -shift);
        x = kFlush ? power_of_two(power) : exp2f(power);
        sum += x;
      }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const float inverse = 1.0f / sum;
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) score[n][2 * half + e] *= inverse;
  }
}

template <int D>
constexpr int kTileBytes = kRows* D * 2;
template <int D, RopeLayout kRope>
constexpr int kTableBytes = kRope == RopeLayout::kNone ? 0 : Angles<D>::kBytes;

/// A block of one head, the work of a group; none where rows is 0.
struct Item {
  int64_t block = 0, token = 0;
  int head = 0, rows = 0;
};
__device__ __forceinline__ Item item_at(const Problem& a, int64_t index) {
  Item x;
  if (index >= a.items) return x;
  x.block = index / a.p.heads;
  x.head = static_cast<int>(index - x.block * a.p.heads);
  x.token = a.blocks.token[x.block];
  x.rows = static_cast<int>(a.blocks.token[x.block + 1] - x.token);
  return x;
}
template <class T>
__device__ __forceinline__ T* row_of(const HeadsView& view, const Item& x, int head) {
  return static_cast<T*>(view.data) + x.token * view.token_stride + head * view.head_stride;
}

/// Thread blocks of as many groups as shared memory has room for, `most` at most, one thread block a
/// multiprocessor; `more`: the kernel's further arguments.
template <class Kernel, class... More>
void launch(Kernel* kernel, const Problem& problem, int most, int table_bytes, int group_bytes,
            const More&... more) {
  int device = 0, limit = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "cudaDeviceGetAttribute");
  const int room = (limit - table_bytes) / group_bytes, groups = room < most ? room : most;
  const int bytes = table_bytes + groups * group_bytes;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "cudaFuncSetAttribute");
  kernel<<<multiprocessors(), groups * kGroupThreads, bytes, stream_of(problem.p.stream)>>>(
      problem, more...);
  check_launch("block_attention");
}

inline Problem problem_of(const BlockAttention& p, const BlockPlaces& blocks) {
  return {p, blocks, p.blocks * p.heads,
          static_cast<float>(-2.0 * std::log2(p.rope_base) / static_cast<double>(p.head_dim))};
}

/// f(element, D, layout, whether values turn) for the problem's.
template <class F>
void with_kind(const BlockAttention& p, F&& f) {
  const auto with_values = [&](auto t, auto d, auto rope) {
    if (p.rotate_values) return f(t, d, rope, std::true_type{});
    f(t, d, rope, std::false_type{});
  };
  const auto with_rope = [&](auto t, auto d) {
    using R = RopeLayout;
    if (p.rope == R::kHalfSplit)
      return with_values(t, d, std::integral_constant<R, R::kHalfSplit>{});
    if (p.rope == R::kInterleaved)
      return with_values(t, d, std::integral_constant<R, R::kInterleaved>{});
    f(t, d, std::integral_constant<R, R::kNone>{}, std::false_type{});
  };
  const auto with_dim = [&](auto t) {
    if (p.head_dim == 64) return with_rope(t, std::integral_constant<int, 64>{});
    with_rope(t, std::integral_constant<int, 128>{});
  };
  if (p.element == Element::kBFloat16) return with_dim(BFloat16{});
  with_dim(Float16{});
}

}  // namespace tautline::kernels::fused
