// Rotary embedding on the GPU: one pass, 16 bytes a lane. A thread owns the same channels of a few
// heads of one token, so that each sine and cosine is computed once for them all. Frequencies come
// from the host in FP32: their power in double would cost more than the memory traffic.
#include <cmath>

#include "tautline/kernels/rope.h"
#include "tautline/kernels/vector.cuh"

namespace tautline::kernels {
namespace {

constexpr int kThreads = 256, kMostHalf = 256, kHeadsATime = 4;

struct Frequencies {
  float value[kMostHalf];
};

template <class T, int V>
__global__ void __launch_bounds__(kThreads) rotate(Rope p, Frequencies frequencies) {
  const int half = static_cast<int>(p.head_dim) / 2, vectors = half / V;
  const int heads = static_cast<int>(p.heads), head_groups = divide_up(heads, kHeadsATime);
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t t = i / (vectors * head_groups);
  if (t >= p.tokens) return;
  const int within = static_cast<int>(i - t * (vectors * head_groups));
  const int d = within % vectors * V, first_head = within / vectors * kHeadsATime;
  const auto position = static_cast<float>(p.position[t]);
  float c[V], s[V];
#pragma unroll
  for (int k = 0; k < V; ++k) {
    sincosf(position * frequencies.value[d + k], &s[k], &c[k]);
    if (p.backward) s[k] = -s[k];
  }
  const T* in = static_cast<const T*>(p.in) + t * p.in_token;
  T* out = static_cast<T*>(p.out) + t * p.out_token;
#pragma unroll
  for (int part = 0; part < 2; ++part)
#pragma unroll
    for (int h = 0; h < kHeadsATime; ++h) {
      if (first_head + h >= heads) continue;
      const int64_t at = (int64_t{part} * heads + first_head + h) * p.head_dim + d;
      float a[V], b[V], x[V], y[V];
      load_vector(in + at, a);
      load_vector(in + at + half, b);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        x[k] = a[k] * c[k] - b[k] * s[k];
        y[k] = b[k] * c[k] + a[k] * s[k];
      }
      store_vector(out + at, x);
      store_vector(out + at + half, y);
    }
  if (!p.with_v || p.in == p.out) return;
#pragma unroll
  for (int h = 0; h < kHeadsATime; ++h) {  // v is copied
    if (first_head + h >= heads) continue;
    const int64_t at = (int64_t{2} * heads + first_head + h) * p.head_dim + d;
    float a[V], b[V];
    load_vector(in + at, a);
    load_vector(in + at + half, b);
    store_vector(out + at, a);
    store_vector(out + at + half, b);
  }
}

template <class T, int V>
void launch(const Rope& p, const Frequencies& frequencies) {
  const int64_t threads =
      p.tokens * (p.head_dim / 2 / V) * divide_up(p.heads, int64_t{kHeadsATime});
  rotate<T, V><<<static_cast<unsigned>(divide_up(threads, int64_t{kThreads})), kThreads, 0,
                 stream_of(p.stream)>>>(p, frequencies);
}

}  // namespace

void rope_cuda(const Rope& p) {
  if (p.tokens == 0 || p.heads == 0 || p.head_dim == 0) return;
  const int64_t half = p.head_dim / 2;
  if (half > kMostHalf)
    throw user_error("head dimension ", p.head_dim, " is above ", 2 * kMostHalf,
                     ", the most that the rotary embedding takes on CUDA");
  Frequencies frequencies;
  for (int64_t d = 0; d < half; ++d)
    frequencies.value[d] = static_cast<float>(
        std::pow(p.base, -2.0 * static_cast<double>(d) / static_cast<double>(p.head_dim)));
  with_element(p.element, [&](auto zero) {
    using T = decltype(zero);
    if (vectors_fit(half, sizeof(T), static_cast<const char*>(p.in), static_cast<char*>(p.out)) &&
        p.in_token % kVector<T> == 0 && p.out_token % kVector<T> == 0)
      launch<T, kVector<T>>(p, frequencies);
    else
      launch<T, 1>(p, frequencies);
  });
  check_launch("rotary embedding");
}

}  // namespace tautline::kernels
