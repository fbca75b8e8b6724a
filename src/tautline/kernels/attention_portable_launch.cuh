// How the portable kernels (attention_portable.cuh) take shared memory, divide their work and are
// launched.
#pragma once

#include <algorithm>
#include <type_traits>

#include "tautline/kernels/attention_portable.cuh"

namespace tautline::kernels::portable {

/// Shared memory of a CTA, taken from the front; sizes are multiples of 32 bytes.
struct Shared {
  char* next;
  template <class X>
  __device__ X* take(int count) {
    X* result = reinterpret_cast<X*>(next);
    next += count * sizeof(X);
    return result;
  }
};
extern __shared__ __align__(128) char shared_memory[];

/// CTA `task` of tiles x heads x sequences, tiles fastest.
struct Place {
  int64_t tile, head, sequence;
};
__device__ inline Place place_of(int64_t task, int64_t tiles, int64_t heads) {
  return {task % tiles, task / tiles % heads, task / tiles / heads};
}

/// The row of a warp's 16 that a lane works on, and its half of the columns.
struct Lane {
  int warp = threadIdx.x / kWarp;
  int row = warp * kStep + threadIdx.x % kWarp / 2;
  int half = threadIdx.x % 2;
};
__device__ inline float pair_sum(float x) { return x + __shfl_xor_sync(0xffffffffu, x, 1); }
__device__ inline float pair_max(float x) { return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1)); }

template <class Kernel, class... A>
void launch(const char* name, Kernel kernel, int64_t ctas, int threads, size_t bytes, void* stream,
            A... arguments) {
  constexpr int64_t kMostCtas = 1 << 30;
  if (ctas == 0) return;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)),
             name);
  kernel<<<static_cast<unsigned>(std::min(ctas, kMostCtas)), threads, bytes, stream_of(stream)>>>(
      arguments...);
  check_launch(name);
}

/// Calls body(T{}, std::integral_constant<int, P>{}).
template <class Body>
void with_shape(const AttentionProblem& p, Body&& body) {
  const int64_t widest = std::max(p.head_dim, p.value_dim);
  if (widest > 256)
    throw user_error("attention: head dimensions ", p.head_dim, " and ", p.value_dim,
                     "; CUDA takes at most 256");
  const auto with_width = [&](auto t) {
    if (widest <= 32) return body(t, std::integral_constant<int, 32>{});
    if (widest <= 64) return body(t, std::integral_constant<int, 64>{});
    if (widest <= 128) return body(t, std::integral_constant<int, 128>{});
    return body(t, std::integral_constant<int, 256>{});
  };
  if (p.element == Element::kBFloat16) return with_width(BFloat16{});
  if (p.element == Element::kFloat16) return with_width(Float16{});
  throw user_error("attention: float32 on CUDA; bfloat16 or float16 is needed");
}

inline Scores scores_of(const JaggedAttention& p) {
  return {p, true, ScoreActivation::kIdentity, static_cast<float>(p.scale), 1.0f, p.lse, p.delta};
}
inline Scores scores_of(const Gdpa& p) {
  return {p, false, p.activation, static_cast<float>(p.alpha), static_cast<float>(p.beta)};
}

/// The partial sums of both bias tables, after the backward.
void bias_gradient(const Scores& a);

}  // namespace tautline::kernels::portable
