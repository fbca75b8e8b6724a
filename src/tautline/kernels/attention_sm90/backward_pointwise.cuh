// GDPA's scores for backward.cuh: P = f(s), dS = f'(s) dP with s = alpha q . k.
// SiLU and GELU (tanh) have their own instantiations, exact and fast; the others share one, with a
// run-time branch. Exponentials are ex2.approx and rcp.approx (2 ulp), erf is CUDA's. Fast: one
// tanh.approx for both, off by 2^-11 at most: f by 2^-12 |s|, SiLU's slope by 2^-12 (1 + |s|), and, as it is
// 2 f' - 1 that is rounded to bf16, by 2^-10 more (2^-9 where that is beyond 1).
#pragma once

#include "tautline/kernels/attention_sm90/backward_scores.cuh"

namespace tautline::kernels::sm90 {

struct Weight {
  float f, slope;  // f(s), f'(s), or what FastWeight makes of them
};

template <ScoreActivation kActivation>
__device__ __forceinline__ Weight weight_of(float s) {
  if constexpr (kActivation == ScoreActivation::kIdentity) {
    return {s, 1.0f};
  } else if constexpr (kActivation == ScoreActivation::kRelu) {
    return {fmaxf(s, 0.0f), s > 0.0f ? 1.0f : 0.0f};
  } else if constexpr (kActivation == ScoreActivation::kSquaredRelu) {
    const float x = fmaxf(s, 0.0f);
    return {x * x, 2.0f * x};
  } else if constexpr (kActivation == ScoreActivation::kSilu) {
    const float sigmoid = __fdividef(1.0f, 1.0f + exp2_fast(-1.44269504089f * s)), f = s * sigmoid;
    return {f, fmaf(f, 1.0f - sigmoid, sigmoid)};
  } else if constexpr (kActivation == ScoreActivation::kGelu) {
    const float phi = 0.5f + 0.5f * erff(0.70710678118f * s);
    return {s * phi, fmaf(s * 0.39894228040f, exp2_fast(-0.72134752044f * s * s), phi)};
  } else if constexpr (kActivation == ScoreActivation::kGeluTanh) {
    // (1 + tanh u) / 2 is the sigmoid of 2 u.
    constexpr float kA = 1.59576912161f, kB = 0.044715f;
    const float square = s * s, u = s * fmaf(kA * kB, square, kA);
    const float sigmoid = __fdividef(1.0f, 1.0f + exp2_fast(-1.44269504089f * u)), f = s * sigmoid;
    return {f, fmaf(f * (1.0f - sigmoid), fmaf(3.0f * kA * kB, square, kA), sigmoid)};
  } else if constexpr (kActivation == ScoreActivation::kLeakyRelu) {
    return {s > 0.0f ? s : 0.01f * s, s > 0.0f ? 1.0f : 0.01f};
  } else {
    static_assert(kActivation == ScoreActivation::kHardSwish);
    const float ramp = fminf(fmaxf(s + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f);
    const bool inside = s > -3.0f && s < 3.0f;
    return {s * ramp, inside ? fmaf(s, 1.0f / 3.0f, 0.5f) : s < 3.0f ? 0.0f : 1.0f};
  }
}

__device__ __forceinline__ float tanh_fast(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// From a raw score q . k, alpha folded into the constants: one special function where the exact ones
/// take two, and the slope as 2 f' - 1, whose 1 the product with the gradient adds. GELU's weight is
/// 2 f / alpha: a multiplication less, and d_v gets it at the end.
template <ScoreActivation kActivation>
struct FastWeight {
  static_assert(kActivation == ScoreActivation::kSilu || kActivation == ScoreActivation::kGeluTanh);
  static constexpr bool kSilu = kActivation == ScoreActivation::kSilu;
  float linear, cubic;  // u = s (linear + cubic s^2); SiLU's: s linear
  float steep;          // GELU: du/ds = linear + steep s^2

  __device__ explicit FastWeight(float alpha)
      : linear((kSilu ? 0.5f : 0.79788456080f) * alpha),
        cubic(0.79788456080f * 0.044715f * alpha * alpha * alpha),
        steep(3 * cubic) {}
  /// With t = tanh u both are 2 f' - 1 = t + s du/ds (1 - t^2).
  __device__ __forceinline__ Weight operator()(float s) const {
    if constexpr (kSilu) {  // f = u (1 + t)
      const float u = s * linear, t = tanh_fast(u);
      return {fmaf(u, t, u), fmaf(u, fmaf(-t, t, 1.0f), t)};
    } else {  // 2 f / alpha = s (1 + t), which (1 - t) makes s (1 - t^2)
      const float square = s * s, t = tanh_fast(s * fmaf(cubic, square, linear));
      const float f = fmaf(s, t, s);
      return {f, fmaf(fmaf(steep, square, linear), fmaf(-t, f, f), t)};
    }
  }
};

/// kActivations: those that one instantiation covers. Where there are several, a run-time branch
/// chooses for eight scores at a time: around all of a thread's scores its ends would meet in more
/// registers than there are.
template <class E, ScoreActivation... kActivations>
struct PointwiseScores {
  static constexpr bool kRows = false, kGates = true;
  __device__ __forceinline__ static float weights_lack(float) { return 1; }
  static constexpr float kSlopesLack = 1;
  static constexpr uint32_t kHiddenGate = 0;
  float scale;
  ScoreActivation activation;
  template <class Arguments>
  __device__ explicit PointwiseScores(const Arguments& p)
      : scale(p.scale), activation(p.activation) {}

  template <ScoreActivation kActivation, int kBegin, int kEnd, class Registers>
  __device__ __forceinline__ void some(Registers s, uint32_t* p, uint32_t* gates) const {
#pragma unroll
    for (int i = kBegin; i < kEnd; i += 2) {
      const Weight x = weight_of<kActivation>(s[i] * scale);
      const Weight y = weight_of<kActivation>(s[i + 1] * scale);
      p[i / 2] = pack<E>(x.f, y.f);
      gates[i / 2] = pack<E>(x.slope, y.slope);
    }
  }
  template <int kBegin, int kCount, class Registers>
  __device__ __forceinline__ void choose(Registers s, uint32_t* p, uint32_t* gates) const {
    if constexpr (kBegin < kCount) {
      ((activation == kActivations ? some<kActivations, kBegin, kBegin + 8>(s, p, gates) : void()),
       ...);
      choose<kBegin + 8, kCount>(s, p, gates);
    }
  }
  template <int kM, class Registers>
  __device__ __forceinline__ void weights(Registers s, uint32_t* p, uint32_t* gates) const {
    if constexpr (sizeof...(kActivations) == 1)
      (some<kActivations, 0, kM / 2>(s, p, gates), ...);
    else
      choose<0, kM / 2>(s, p, gates);
  }
  template <int kM, class Registers>
  __device__ __forceinline__ void gradients(const uint32_t* gates, Registers dp,
                                            uint32_t* ds) const {
#pragma unroll
    for (int i = 0; i < kM / 2; i += 2) ds[i / 2] = multiply<E>(gates[i / 2], dp[i], dp[i + 1]);
  }
};

/// The fast form of one activation. Gradients are rounded before slopes multiply them, two at a time:
/// three roundings in place of two. dS = (1 + gate) dP, rounded once.
template <class E, ScoreActivation kActivation>
struct FastScores : PointwiseScores<E, kActivation> {
  __device__ __forceinline__ static float weights_lack(float alpha) {
    return kActivation == ScoreActivation::kGeluTanh ? 0.5f * alpha : 1;
  }
  static constexpr float kSlopesLack = 0.5f;
  static constexpr uint32_t kHiddenGate = 0xbf80bf80;  // -1
  FastWeight<kActivation> weight;
  template <class Arguments>
  __device__ explicit FastScores(const Arguments& p)
      : PointwiseScores<E, kActivation>(p), weight(p.scale) {}
  template <int kM, class Registers>
  __device__ __forceinline__ void weights(Registers s, uint32_t* p, uint32_t* gates) const {
#pragma unroll
    for (int i = 0; i < kM / 2; i += 2) {
      const Weight x = weight(s[i]), y = weight(s[i + 1]);
      p[i / 2] = pack<E>(x.f, y.f);
      gates[i / 2] = pack<E>(x.slope, y.slope);
    }
  }
  template <int kM, class Registers>
  __device__ __forceinline__ void gradients(const uint32_t* gates, Registers dp,
                                            uint32_t* ds) const {
    static_assert(std::is_same_v<E, cutlass::bfloat16_t>);
#pragma unroll
    for (int i = 0; i < kM / 2; i += 2)
      asm("fma.rn.bf16x2 %0, %1, %2, %2;"
          : "=r"(ds[i / 2])
          : "r"(gates[i / 2]), "r"(pack<E>(dp[i], dp[i + 1])));
  }
};

}  // namespace tautline::kernels::sm90
