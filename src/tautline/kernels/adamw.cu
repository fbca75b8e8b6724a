// A block a run: 64 KiB of each buffer. Bound by memory.
#include <cmath>

#include "tautline/kernels/adamw.h"
#include "tautline/kernels/launch.cuh"

namespace tautline::kernels {
namespace {

constexpr int kThreads = 256, kUnroll = 2;  // 128 bytes of loads a thread under way

struct Factors {
  float beta1, other1, beta2, other2, rate, step_size, inverse_root, eps;
};

struct Number {
  float value, first, second;
};
__device__ __forceinline__ Number updated(const Factors& f, Number x, float gradient,
                                          float inverse_divisor, float decay) {
  const float g = gradient * inverse_divisor;
  x.first = fmaf(f.beta1, x.first, f.other1 * g);
  x.second = fmaf(f.beta2, x.second, f.other2 * g * g);
  const float root = fmaf(sqrtf(x.second), f.inverse_root, f.eps);
  // Not times 1 - decay, whose rounding would be the same for all numbers.
  x.value = fmaf(-f.step_size, x.first / root, fmaf(-decay, x.value, x.value));
  return x;
}

__global__ void __launch_bounds__(kThreads)
    adamw(const __grid_constant__ AdamW p, const __grid_constant__ Factors f) {
  const AdamWRun run = p.runs[blockIdx.x];
  const float inverse = p.divisor ? 1.0f / *p.divisor : 1.0f;
  const float decay = f.rate * run.decay;
  const auto one = [&](int64_t i) {
    const Number x =
        updated(f, {p.value[i], p.first[i], p.second[i]}, p.gradient[i], inverse, decay);
    p.value[i] = x.value, p.first[i] = x.first, p.second[i] = x.second;
  };
  // To the first number that 16 bytes begin with, and from the last on: one by one.
  const int64_t end = run.begin + run.count;
  const int64_t from = min(end, (run.begin + 3) / 4 * 4), to = max(from, end / 4 * 4);
  if (threadIdx.x < from - run.begin) one(run.begin + threadIdx.x);
  if (threadIdx.x < end - to) one(to + threadIdx.x);
  const auto* gradient = reinterpret_cast<const float4*>(p.gradient);
  auto *value = reinterpret_cast<float4*>(p.value), *first = reinterpret_cast<float4*>(p.first),
       *second = reinterpret_cast<float4*>(p.second);
  for (int64_t i = from / 4 + threadIdx.x; i < to / 4; i += kUnroll * kThreads) {
    float4 v[kUnroll], g[kUnroll], m[kUnroll], s[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t j = i + u * kThreads;
      if (j >= to / 4) continue;
      v[u] = __ldcs(value + j), g[u] = __ldcs(gradient + j);
      m[u] = __ldcs(first + j), s[u] = __ldcs(second + j);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t j = i + u * kThreads;
      if (j >= to / 4) continue;
      const Number a = updated(f, {v[u].x, m[u].x, s[u].x}, g[u].x, inverse, decay);
      const Number b = updated(f, {v[u].y, m[u].y, s[u].y}, g[u].y, inverse, decay);
      const Number c = updated(f, {v[u].z, m[u].z, s[u].z}, g[u].z, inverse, decay);
      const Number d = updated(f, {v[u].w, m[u].w, s[u].w}, g[u].w, inverse, decay);
      __stcs(value + j, float4{a.value, b.value, c.value, d.value});
      __stcs(first + j, float4{a.first, b.first, c.first, d.first});
      __stcs(second + j, float4{a.second, b.second, c.second, d.second});
    }
  }
}

}  // namespace

void adamw_cuda(const AdamW& p) {
  if (p.run_count == 0) return;
  const double t = static_cast<double>(p.step);
  const Factors f{static_cast<float>(p.beta1),
                  static_cast<float>(1 - p.beta1),
                  static_cast<float>(p.beta2),
                  static_cast<float>(1 - p.beta2),
                  static_cast<float>(p.rate),
                  static_cast<float>(p.rate / (1 - std::pow(p.beta1, t))),
                  static_cast<float>(1 / std::sqrt(1 - std::pow(p.beta2, t))),
                  static_cast<float>(p.eps)};
  adamw<<<static_cast<unsigned>(p.run_count), kThreads, 0, stream_of(p.stream)>>>(p, f);
  check_launch("AdamW");
}

}  // namespace tautline::kernels
