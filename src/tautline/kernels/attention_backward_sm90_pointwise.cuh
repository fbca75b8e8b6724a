// GDPA's scores for attention_backward_sm90.cuh: P = f(s), dS = f'(s) dP with s = alpha q . k.
// SiLU and GELU (tanh) have their own instantiations; the others share one, with a run-time branch.
// Exponentials are ex2.approx and rcp.approx (2 ulp), erf is CUDA's.
#pragma once

#include "tautline/kernels/attention_backward_sm90_scores.cuh"

namespace tautline::kernels::sm90 {

struct Weight {
  float f, slope;  // f(s), f'(s)
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

/// kActivations: those that one instantiation covers. Where there are several, a run-time branch
/// chooses for eight scores at a time: around all of a thread's scores its ends would meet in more
/// registers than there are.
template <class E, ScoreActivation... kActivations>
struct PointwiseScores {
  static constexpr bool kRows = false, kGates = true;
  float scale;
  ScoreActivation activation;
  template <class Arguments>
  __device__ explicit PointwiseScores(const Arguments& p)
      : scale(p.scale), activation(p.activation) {}

  template <int kM, class Registers>
  __device__ __forceinline__ void start(Registers, const float*, int) const {}
  template <int kM>
  __device__ __forceinline__ void load(float2*, const float*, int) const {}
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
  __device__ __forceinline__ void weights(Registers s, uint32_t* p, uint32_t* gates,
                                          const float2*) const {
    if constexpr (sizeof...(kActivations) == 1)
      (some<kActivations, 0, kM / 2>(s, p, gates), ...);
    else
      choose<0, kM / 2>(s, p, gates);
  }
  template <int kM, class Registers>
  __device__ __forceinline__ void gradients(const uint32_t* gates, Registers dp,
                                            uint32_t* ds) const {
#pragma unroll
    for (int i = 0; i < kM / 2; i += 2) {
      const float2 slope = unpack<E>(gates[i / 2]);
      ds[i / 2] = pack<E>(slope.x * dp[i], slope.y * dp[i + 1]);
    }
  }
};

}  // namespace tautline::kernels::sm90
