// The rows' pass of loss.h: running maxima and sums, and sums of items weighed by exponentials.
//
// The maximum is lazy: exponentials are exp2(x - m) where m trails the row's maximum by at most
// kSlack octaves (FlashAttention-4), since the ratio of the two sums is the same whatever m is.
#pragma once

#include <cmath>

#include "tautline/kernels/mma.cuh"
#include "tautline/kernels/softmax_loss_sm90/config.cuh"

namespace tautline::kernels::softmax_sm90 {

template <class E, int kD, int kN, int kItemsN, bool kProduct_, Start kStart_>
struct RowsPass {
  static constexpr bool kProduct = kProduct_, kRescales = true;
  static constexpr Start kStart = kStart_;
  // Whether a row's own class is left out of the product, see finish. Beside hits, where nobody
  // asks for both, there are no registers for it.
  static constexpr bool kApart = kProduct && kStart != Start::kHits;
  static constexpr float kSlack = 8;
  static constexpr float kNone = -1e30f;  // m before any score: finite, so that differences are
  float to_log2;
  int32_t row;            // the thread's first; its second is 8 further
  float top[2], most[2];  // m in octaves; the largest score
  float total[2];         // of this thread's columns
  StayIds<kN> ids;
  int32_t inside;    // of the block's items
  int32_t ahead[2];  // the rows' own classes, counted from the block's first; negative: none

  __device__ explicit RowsPass(const PassArguments& p) : to_log2(p.to_log2) {}

  __device__ __forceinline__ void begin(const PassArguments& p, int32_t first) {
    row = first + static_cast<int32_t>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
    top[0] = top[1] = kNone;
    most[0] = most[1] = -INFINITY;
    total[0] = total[1] = 0;
    if constexpr (kStart == Start::kHits) ids.load(p.row_id, row, p.stay_count);
    if constexpr (kApart) ahead[0] = target_of(p, row), ahead[1] = target_of(p, row + 8);
  }
  __device__ __forceinline__ static int32_t target_of(const PassArguments& p, int32_t r) {
    return p.target && r < p.stay_count ? static_cast<int32_t>(p.target[r]) : -1;
  }
  __device__ __forceinline__ void start(const Corrections<kN>& c, float (&s)[kN / 2]) {
    if constexpr (kStart == Start::kZero)
      inside = c.inside;
    else if constexpr (kStart == Start::kOwn)
      start_scores(c, threadIdx.x, s);
    else
      start_scores(c, threadIdx.x, ids, s);
  }

  /// Scores become exponentials; true where m grew, and then sums so far must be multiplied by
  /// `factor`.
  __device__ __forceinline__ bool weigh(const Corrections<kN>&, float (&s)[kN / 2],
                                        float (&factor)[2]) {
    if (kStart == Start::kZero && inside < kN)
#pragma unroll
      for (int j = 0; j < kN / 2; ++j)
        if (static_cast<int>(j / 4 * 8 + 2 * (threadIdx.x & 3)) + j % 2 >= inside) s[j] = -INFINITY;
    float now[2] = {-INFINITY, -INFINITY}, beside[2] = {-INFINITY, -INFINITY};  // shorter chains
#pragma unroll
    for (int j = 0; j < kN / 2; j += 4) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        now[i] = fmaxf(now[i], s[j + 2 * i]);
        beside[i] = fmaxf(beside[i], s[j + 2 * i + 1]);
      }
    }
    now[0] = fmaxf(now[0], beside[0]);
    now[1] = fmaxf(now[1], beside[1]);
    bool grew = false;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      now[i] = fmaxf(now[i], __shfl_xor_sync(0xffffffffu, now[i], 1));
      now[i] = fmaxf(now[i], __shfl_xor_sync(0xffffffffu, now[i], 2));
      most[i] = fmaxf(most[i], now[i]);
      now[i] *= to_log2;
      const bool up = now[i] > top[i] + kSlack;
      const float next = up ? now[i] : top[i];
      factor[i] = hopper::exp2_fast(top[i] - next);
      top[i] = next;
      grew = grew || up;
    }
    grew = __any_sync(0xffffffffu, grew);
    if (grew) total[0] *= factor[0], total[1] *= factor[1];
    float more[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < kN / 2; ++j) {
      const int i = j / 2 % 2;
      s[j] = hopper::exp2_fast(fmaf(s[j], to_log2, -top[i]));
      more[i] += s[j];
    }
    total[0] += more[0];
    total[1] += more[1];
    if constexpr (kApart) {
      const auto here = [&](int i) { return static_cast<uint32_t>(ahead[i]) < kN; };
      if (__any_sync(0xffffffffu, here(0) || here(1)))
#pragma unroll
        for (int j = 0; j < kN / 2; ++j) {
          const int at = j / 4 * 8 + 2 * static_cast<int>(threadIdx.x & 3) + j % 2;
          if (at == ahead[j / 2 % 2]) s[j] = 0;
        }
      ahead[0] -= kN;
      ahead[1] -= kN;
    }
    return grew;
  }

  /// The logit of row r's class `target`, by the four lanes that have the row.
  __device__ __forceinline__ float logit(const PassArguments& p, int32_t r, int64_t target) const {
    float dot = 0;
    const int lane = threadIdx.x & 3;
    const auto* h = static_cast<const uint4*>(p.h) + int64_t{r} * (p.width / 8);
    const auto* item = static_cast<const uint4*>(p.items) + target * (p.width / 8);
    for (int32_t c = lane; c < p.width / 8; c += 4) {
      const uint4 x = h[c], y = item[c];
      const uint32_t a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 u = mma::unpack<E>(a[i]), v = mma::unpack<E>(b[i]);
        dot = fmaf(u.x, v.x, fmaf(u.y, v.y, dot));
      }
    }
    dot += __shfl_xor_sync(0xffffffffu, dot, 1);
    dot += __shfl_xor_sync(0xffffffffu, dot, 2);
    if (p.column_id && p.row_id && target >= 0 && p.column_id[target] == p.row_id[r])
      return -INFINITY;
    return dot * p.scale - (p.log_q ? p.log_q[target] : 0);
  }

  /// Maximum and sum of row i (0 or 1) with its extra logit; its log-sum-exp in octaves.
  __device__ __forceinline__ float statistics(const PassArguments& p, int i, bool inside) {
    const int32_t r = row + 8 * i;
    const float extra = p.extra && inside ? p.extra[r] : -INFINITY;
    const float largest = most[i] * p.scale, max = fmaxf(largest, extra);
    float sum = 0;
    if (max > -INFINITY) {
      if (top[i] > kNone) sum = total[i] * exp2f(top[i] - max * kLog2E);
      if (extra > -INFINITY) sum += expf(extra - max);
    }
    if (inside && threadIdx.x % 4 == 0) p.max[r] = max, p.sum[r] = sum;
    return max > -INFINITY ? fmaf(max, kLog2E, log2f(sum)) : -INFINITY;
  }

  template <int kCount>
  __device__ __forceinline__ void finish(const PassArguments& p, int32_t, float (&acc)[kCount]) {
    const int lane = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      total[i] += __shfl_xor_sync(0xffffffffu, total[i], 1);
      total[i] += __shfl_xor_sync(0xffffffffu, total[i], 2);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t r = row + 8 * i;
      const bool inside = r < p.stay_count;
      const int32_t target = target_of(p, r);
      const bool targeted = target >= 0;
      const float lse = !p.lse ? statistics(p, i, inside) : inside ? p.lse[r] * kLog2E : 0;
      float x = 0;
      if (__any_sync(0xffffffffu, targeted)) {
        x = logit(p, inside ? r : 0, targeted ? target : 0);
        if (targeted && lane == 0 && !p.lse) p.target_logit[r] = x;
      }
      if constexpr (kProduct) {
        const bool some = !(lse == -INFINITY);  // a NaN goes on
        if (p.row_corrections && inside && lane == 0)
          reinterpret_cast<Corrections<kItemsN>*>(p.row_corrections)[r / kItemsN]
              .start[r % kItemsN] = some ? (kOctaves - lse) / p.to_log2 : -INFINITY;
        const float factor = some && top[i] > kNone ? exp2f(top[i] - lse) * p.weight : 0;
        // exp(x - lse) - 1 as one: of an exponential rounded to 16 bits before, that rounding would
        // be what is left where the model is certain.
        const float own = kApart && some ? expm1f(fmaf(lse, -kLn2, x)) : -1.0f;
        store(p, acc, i, r, inside, target, factor, targeted ? own * p.weight : 0);
      }
    }
  }

  /// d_h of row r. Four lanes hold its pairs of columns; they trade them so that each reads 16
  /// bytes of the target's and writes 16.
  template <int kCount>
  __device__ __forceinline__ void store(const PassArguments& p, const float (&acc)[kCount], int i,
                                        int32_t r, bool inside, int64_t target, float factor,
                                        float own_weight) {
    const int lane = threadIdx.x & 3;
    const auto* item = static_cast<const uint4*>(p.items) + target * (p.width / 8);
    auto* to = static_cast<uint4*>(p.d_h) + int64_t{r} * (p.width / 8);
#pragma unroll
    for (int j = 0; j < kD / 8; j += 4) {
      const bool here = inside && 8 * (j + lane) < p.width;
      uint32_t own[4] = {}, w[4];
      if (here && target >= 0) {
        const uint4 x = item[j + lane];
        own[0] = x.x, own[1] = x.y, own[2] = x.z, own[3] = x.w;
      }
      mma::transpose_quad(own, lane);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float2 x = mma::unpack<E>(own[c]);
        const int k = 4 * (j + c) + 2 * i;
        w[c] = mma::pack<E>(fmaf(acc[k], factor, own_weight * x.x),
                            fmaf(acc[k + 1], factor, own_weight * x.y));
      }
      mma::transpose_quad(w, lane);
      if (here) __stwb(to + j + lane, uint4{w[0], w[1], w[2], w[3]});
    }
  }
};

}  // namespace tautline::kernels::softmax_sm90
