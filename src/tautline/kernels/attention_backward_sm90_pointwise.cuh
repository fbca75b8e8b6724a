// GDPA's scores for attention_backward_sm90.cuh: P = f(s), dS = f'(s) dP with s = alpha q . k.
// Which f is a run-time branch around the loop over a thread's scores, so that four instantiations
// do for all. Exponentials are ex2.approx and rcp.approx (2 ulp), erf is CUDA's.
#pragma once

#include "tautline/kernels/attention_backward_sm90_rows.cuh"

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

template <class E>
struct PointwiseScores {
  static constexpr bool kRows = false, kGates = true;
  float scale;
  ScoreActivation activation;
  __device__ PointwiseScores(float scale, ScoreActivation activation)
      : scale(scale), activation(activation) {}

  template <int kM, class Registers>
  __device__ __forceinline__ void weights(Registers s, uint32_t* p, uint32_t* gates, const float*,
                                          int) const {
    const auto all = [&](auto weight) {
#pragma unroll
      for (int i = 0; i < kM / 2; i += 2) {
        const Weight x = weight(s[i] * scale), y = weight(s[i + 1] * scale);
        p[i / 2] = pack<E>(x.f, y.f);
        gates[i / 2] = pack<E>(x.slope, y.slope);
      }
    };
    using enum ScoreActivation;
    switch (activation) {
      case kIdentity:
        return all([](float x) { return weight_of<kIdentity>(x); });
      case kRelu:
        return all([](float x) { return weight_of<kRelu>(x); });
      case kSquaredRelu:
        return all([](float x) { return weight_of<kSquaredRelu>(x); });
      case kSilu:
        return all([](float x) { return weight_of<kSilu>(x); });
      case kGelu:
        return all([](float x) { return weight_of<kGelu>(x); });
      case kGeluTanh:
        return all([](float x) { return weight_of<kGeluTanh>(x); });
      case kLeakyRelu:
        return all([](float x) { return weight_of<kLeakyRelu>(x); });
      case kHardSwish:
        return all([](float x) { return weight_of<kHardSwish>(x); });
    }
  }
  template <int kM, class Registers>
  __device__ __forceinline__ void gradients(const uint32_t* gates, Registers dp, uint32_t* ds,
                                            const float*, int) const {
#pragma unroll
    for (int i = 0; i < kM / 2; i += 2) {
      const float2 slope = unpack<E>(gates[i / 2]);
      ds[i / 2] = pack<E>(slope.x * dp[i], slope.y * dp[i + 1]);
    }
  }
};

}  // namespace tautline::kernels::sm90
