// The items' pass of loss.h: sums of rows weighed by the exponentials of their items.
#pragma once

#include <cmath>

#include "tautline/kernels/mma.cuh"
#include "tautline/kernels/softmax_loss_sm90/config.cuh"

namespace tautline::kernels::softmax_sm90 {

template <class E, int kD, int kN, bool kHits>
struct ItemsPass {
  static constexpr bool kProduct = true, kRescales = false;
  static constexpr Start kStart = kHits ? Start::kHits : Start::kOwn;
  static_assert(kN == 64 || kN == 128);
  float to_log2;
  bool any_target;
  int32_t item;         // the thread's first; its second is 8 further
  float correction[2];  // -log_q in octaves
  bool targeted;        // some row of the block has one of the warp's items as its target
  StayIds<kN> ids;

  __device__ explicit ItemsPass(const PassArguments& p)
      : to_log2(p.to_log2), any_target(p.target != nullptr) {}

  __device__ __forceinline__ void begin(const PassArguments& p, int32_t first) {
    item = first + static_cast<int32_t>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      correction[i] = p.log_q && item + 8 * i < p.stay_count ? -kLog2E * p.log_q[item + 8 * i] : 0;
    if constexpr (kHits) ids.load(p.column_id, item, p.stay_count);
  }
  __device__ __forceinline__ void start(const Corrections<kN>& c, float (&s)[kN / 2]) {
    const int32_t lane = threadIdx.x % 32, first = item - lane / 4;
    targeted = false;
    if (any_target) {
      const auto mine = [&](int32_t target) { return static_cast<uint32_t>(target - first) < 16; };
      const int2 t = *reinterpret_cast<const int2*>(c.target + 2 * lane);
      bool found = mine(t.x) || mine(t.y);
      if constexpr (kN == 128) {
        const int2 u = *reinterpret_cast<const int2*>(c.target + 64 + 2 * lane);
        found = found || mine(u.x) || mine(u.y);
      }
      targeted = __any_sync(0xffffffffu, found);
    }
    if constexpr (kHits)
      start_scores(c, lane, ids, s);
    else
      start_scores(c, lane, s);
  }
  __device__ __forceinline__ bool weigh(const Corrections<kN>& c, float (&s)[kN / 2],
                                        float (&)[2]) const {
#pragma unroll
    for (int j = 0; j < kN / 2; ++j)
      s[j] = hopper::exp2_fast(fmaf(s[j], to_log2, correction[j / 2 % 2]));
    if (!targeted) return false;
    constexpr float kOne = 1 << static_cast<int>(kOctaves);
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      const int2 t = *reinterpret_cast<const int2*>(c.target + 8 * j + 2 * (threadIdx.x & 3));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (t.x == item + 8 * i) s[4 * j + 2 * i] -= kOne;
        if (t.y == item + 8 * i) s[4 * j + 2 * i + 1] -= kOne;
      }
    }
    return false;
  }

  template <int kCount>
  __device__ __forceinline__ void finish(const PassArguments& p, int32_t split,
                                         const float (&acc)[kCount]) const {
    constexpr float kUnit = 1.f / (1 << static_cast<int>(kOctaves));
    const float factor = p.weight * kUnit;
    const int lane = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t at = int64_t{item + 8 * i} * p.width;
      const bool inside = item + 8 * i < p.stay_count;
      if (p.sums || p.float_items) {
        float* to = p.sums ? p.sums + int64_t{split} * p.stay_count * p.width
                           : static_cast<float*>(p.d_items);
#pragma unroll
        for (int j = 0; j < kD / 8; ++j)  // four lanes fill a sector
          if (inside && 8 * j < p.width)
            *reinterpret_cast<float2*>(to + at + 8 * j + 2 * lane) =
                float2{acc[4 * j + 2 * i] * factor, acc[4 * j + 2 * i + 1] * factor};
        continue;
      }
      auto* to = reinterpret_cast<uint4*>(static_cast<char*>(p.d_items) + 2 * at);
#pragma unroll
      for (int j = 0; j < kD / 8; j += 4) {
        uint32_t w[4];
#pragma unroll
        for (int c = 0; c < 4; ++c)
          w[c] = mma::pack<E>(acc[4 * (j + c) + 2 * i] * factor,
                              acc[4 * (j + c) + 2 * i + 1] * factor);
        mma::transpose_quad(w, lane);
        if (inside && 8 * (j + lane) < p.width)
          __stwb(to + j + lane, uint4{w[0], w[1], w[2], w[3]});
      }
    }
  }
};

}  // namespace tautline::kernels::softmax_sm90
