// What becomes of a warpgroup's scores between the two products of the Hopper forward: weights of
// softmax, kept in step with a running maximum and sum, or an activation of each score alone.
//
// A thread holds scores s[4j + 2i + c] of rows l / 4 + 8i and columns 8j + 2(l mod 4) + c, l its lane.
#pragma once

#include <cmath>

#include "tautline/kernels/attention_sm90/forward_launch.h"
#include "tautline/kernels/gdpa.h"
#include "tautline/kernels/hopper.cuh"

namespace tautline::kernels::sm90 {

/// Softmax with a lazy maximum: the weights of a row are exp2(c s - m) where m need not be the row's
/// maximum, since the ratio of output to sum is exact whatever m is (FlashAttention-4 has the idea).
/// m is looked for in a warpgroup's first block, where pairs are hidden, and in a row's first block.
/// Elsewhere it is trusted until a thread's sum of a block's weights passes twice what kSlack makes of
/// it (which is in FP16's range): then the warp multiplies the block's scores once more (`again`), looks
/// for m in this block and its pass's others, and finds the weights anew. That saves the search, up to
/// 13 % of the time. (To trust the first block's maximum for good and compute rows anew that pass 100
/// octaves made training 50 times slower, whose logits grew that far within 20 steps.)
struct Softmax {
  static constexpr bool kMaskTail = true, kRescales = true;
  static constexpr float kSlack = 8;      // octaves that m may trail where it is looked for
  static constexpr float kMost = 0x1p8f;  // of a weight then; a thread sums kCount / 2 of a row
  static constexpr float kNone = -1e30f;  // m of a row that has seen no key
  float top[2], sum[2];                   // m; the sum of this thread's columns
  float to_log2;
  bool wary;  // m is not trusted in the rest of the pass

  __device__ void begin(const ScoreNumbers& n) {
    to_log2 = n.scale;
    wary = false;
    top[0] = top[1] = kNone;
    sum[0] = sum[1] = 0;
  }
  /// Raises m where it trails too far; true where it did, and then rows so far must be multiplied by
  /// `factor`.
  template <int kCount>
  __device__ __forceinline__ bool track(const float (&s)[kCount], float (&factor)[2]) {
    float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int j = 0; j < kCount; j += 4) {
      most[0] = fmaxf(most[0], fmaxf(s[j], s[j + 1]));
      most[1] = fmaxf(most[1], fmaxf(s[j + 2], s[j + 3]));
    }
    bool grew = false;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 1));
      most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 2));
      most[i] *= to_log2;
      factor[i] = 1;
      if (most[i] > top[i] + kSlack) {
        factor[i] = hopper::exp2_fast(top[i] - most[i]);
        top[i] = most[i];
        grew = true;
      }
    }
    grew = __any_sync(0xffffffffu, grew);
    if (grew) sum[0] *= factor[0], sum[1] *= factor[1];
    return grew;
  }
  /// Scores become weights, `more` their sums.
  template <int kCount>
  __device__ __forceinline__ void exponentials(float (&s)[kCount], float (&more)[2]) {
    more[0] = more[1] = 0;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int i = j / 2 % 2;
      s[j] = hopper::exp2_fast(fmaf(s[j], to_log2, -top[i]));
      more[i] += s[j];
    }
  }
  /// Scores become weights, of a row's first block.
  template <int kCount>
  __device__ __forceinline__ void weigh_first(float (&s)[kCount]) {
    float factor[2];
    track(s, factor);
    exponentials(s, sum);
  }
  /// Of its others; where `look`, m is looked for. True as `track`.
  template <int kCount, class Again>
  __device__ __forceinline__ bool weigh(float (&s)[kCount], float (&factor)[2], bool look,
                                        const Again& again) {
    constexpr float kMostSum = kCount * kMost;
    const bool tracks = look || wary;
    bool grew = false;
    if (tracks) grew = track(s, factor);
    float more[2];
    exponentials(s, more);
    if (!tracks && __any_sync(0xffffffffu, more[0] > kMostSum || more[1] > kMostSum)) {
      again();
      wary = true;
      grew = track(s, factor);
      exponentials(s, more);
    }
    sum[0] += more[0], sum[1] += more[1];
    return grew;
  }
  /// What the row's output is multiplied by, after this; and its log-sum-exp.
  __device__ __forceinline__ void finish(float (&factor)[2], float (&lse)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
      sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
      factor[i] = sum[i] > 0 ? 1 / sum[i] : 0;
      lse[i] = sum[i] > 0 ? (top[i] + log2f(sum[i])) * 0.69314718056f : -INFINITY;
    }
  }
};

/// k, but not before x is there; `zero` is 0, of which the compiler does not know.
__device__ __forceinline__ float after(float x, float k, int32_t zero) {
  return __int_as_float((__float_as_int(x) & zero) | __float_as_int(k));
}

/// An activation with a formula of its own, f(alpha s). kFast takes tanh.approx.f32 where there is a
/// choice; else the error is a few units of FP32's last place. Scores of masked keys are 0 here, and
/// so are their weights: f(0) = 0. Fast GELU's weights are s (1 + tanh u) where kUnscaled, and its
/// alpha / 2 is a factor of the output (an instruction less an element); FP16 weights, which end at
/// 65,504, have no room for that.
template <ScoreActivation kF, bool kFast, bool kUnscaled = false>
struct Pointwise {
  static constexpr bool kMaskTail = false, kRescales = false;
  static_assert(!kUnscaled || (kFast && kF == ScoreActivation::kGeluTanh));
  static_assert(kF == ScoreActivation::kSilu || kF == ScoreActivation::kGelu ||
                kF == ScoreActivation::kGeluTanh);
  float alpha, half, linear, cubic;  // alpha, its half; GELU's u = s (linear + cubic s^2)
  int32_t zero;

  __device__ void begin(const ScoreNumbers& n) {
    alpha = n.scale;
    zero = n.zero;
    half = 0.5f * alpha;
    linear = 0.79788456080f * alpha;
    cubic = 0.79788456080f * 0.044715f * alpha * alpha * alpha;
  }
  __device__ __forceinline__ float of(float s) const {
    using namespace hopper;
    if constexpr (kF == ScoreActivation::kSilu) {
      const float h = half * s;
      return alpha * s * reciprocal_fast(1 + exp2_fast(-2.88539008178f * h));
    } else if constexpr (kF == ScoreActivation::kGeluTanh) {
      const float u = s * fmaf(s * s, cubic, linear);
      return alpha * s * reciprocal_fast(1 + exp2_fast(-2.88539008178f * u));
    } else {
      // 1 - erf(x) = t (a1 + a2 t + ...) exp(-x^2), t = 1 / (1 + p x), off by 1.5e-7 at most
      // (Abramowitz and Stegun 7.1.26); x = |alpha s| / sqrt(2).
      const float y = alpha * s, x = fabsf(y) * 0.70710678119f;
      const float t = reciprocal_fast(fmaf(0.3275911f, x, 1));
      float poly = fmaf(t, 1.061405429f, -1.453152027f);
      poly = fmaf(poly, t, 1.421413741f);
      poly = fmaf(poly, t, -0.284496736f);
      poly = fmaf(poly, t, 0.254829592f) * t;
      const float tail = 0.5f * poly * exp2_fast(-1.44269504089f * x * x);
      return y * (y < 0 ? tail : 1 - tail);
    }
  }
  /// What outputs are multiplied by.
  __device__ float finish(float beta) const { return kUnscaled ? half * beta : beta; }
  template <int kCount>
  __device__ __forceinline__ void weigh_first(float (&s)[kCount]) const {
    if constexpr (kFast) {
      weigh_fast(s);
    } else {
#pragma unroll
      for (int j = 0; j < kCount; ++j) s[j] = of(s[j]);
    }
  }
  /// ptxas spreads what comes before a tanh too far ahead of it: it reckons with an operation a cycle,
  /// where one takes three while other warpgroups' products use the registers, and leaves most tanhs
  /// to the end, in a row. So a run of elements begins after the last tanh of the last run but one: its
  /// constant is said to depend on it. (Forward at L = 2048: 4 % of the cycles.)
  template <int kCount>
  __device__ __forceinline__ void weigh_fast(float (&s)[kCount]) const {
    constexpr bool kGelu = kF == ScoreActivation::kGeluTanh;
    constexpr int kRun = kGelu ? 8 : 4;
    float constants[2];
    constants[0] = constants[1] = kGelu ? linear : half;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      float& mine = constants[j / kRun % 2];
      const float h = !kGelu ? mine * s[j] : kUnscaled ? s[j] : half * s[j];
      const float t = hopper::tanh_fast(kGelu ? s[j] * fmaf(s[j] * s[j], cubic, mine) : h);
      s[j] = fmaf(h, t, h);
      if (j % kRun == kRun - 1) mine = after(t, mine, zero);
    }
  }
  template <int kCount, class Again>
  __device__ __forceinline__ bool weigh(float (&s)[kCount], float (&)[2], bool,
                                        const Again&) const {
    weigh_first(s);
    return false;
  }
};

/// s min(max(slope s + offset, low), high): the piecewise activations, in one kernel.
struct Gate {
  static constexpr bool kMaskTail = false, kRescales = false;
  ScoreNumbers n;

  __device__ void begin(const ScoreNumbers& numbers) { n = numbers; }
  __device__ float finish(float beta) const { return beta; }
  template <int kCount>
  __device__ __forceinline__ void weigh_first(float (&s)[kCount]) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float x = n.scale * s[j];
      s[j] = x * fminf(fmaxf(fmaf(n.slope, x, n.offset), n.low), n.high);
    }
  }
  template <int kCount, class Again>
  __device__ __forceinline__ bool weigh(float (&s)[kCount], float (&)[2], bool,
                                        const Again&) const {
    weigh_first(s);
    return false;
  }
};

}  // namespace tautline::kernels::sm90
