// A few lanes a row, eight numbers of it each at a time.
#include "tautline/kernels/softmax_positive.h"
#include "tautline/kernels/vector.cuh"

namespace tautline::kernels {
namespace {

constexpr int kThreads = 256;

/// V numbers, 1 or 8, in loads and stores of 16 bytes.
template <int V, class T>
__device__ __forceinline__ void load_many(const T* at, float (&out)[V]) {
  if constexpr (V == 8 && sizeof(T) == 4)
    load_floats(reinterpret_cast<const float*>(at), out);
  else
    load_vector(at, out);
}
template <int V, class T>
__device__ __forceinline__ void store_many(T* at, const float (&x)[V]) {
  if constexpr (V == 8 && sizeof(T) == 4) {
    store_vector<4>(at, reinterpret_cast<const float(&)[4]>(x[0]));
    store_vector<4>(at + 4, reinterpret_cast<const float(&)[4]>(x[4]));
  } else {
    store_vector(at, x);
  }
}

template <class H, class E, int V, int kLanes>
__global__ void __launch_bounds__(kThreads) forward(SoftmaxPositive p) {
  const int lane = threadIdx.x % kLanes;
  const int64_t r = int64_t{blockIdx.x} * (kThreads / kLanes) + threadIdx.x / kLanes;
  float dot = 0;
  if (r < p.rows)
    for (int64_t k = lane * V; k < p.width; k += kLanes * V) {
      float h[V], e[V];
      load_many(static_cast<const H*>(p.h) + r * p.width + k, h);
      load_many(static_cast<const E*>(p.positive) + r * p.width + k, e);
#pragma unroll
      for (int i = 0; i < V; ++i) dot = fmaf(h[i], e[i], dot);
    }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    dot += __shfl_xor_sync(0xffffffffu, dot, offset);
  if (r < p.rows && lane == 0)
    p.own[r] = dot * static_cast<float>(p.scale) - (p.log_q ? p.log_q[r] : 0);
}

template <class H, class E, int V, int kLanes>
__global__ void __launch_bounds__(kThreads) backward(SoftmaxPositive p) {
  const int lane = threadIdx.x % kLanes;
  const int64_t r = int64_t{blockIdx.x} * (kThreads / kLanes) + threadIdx.x / kLanes;
  if (r >= p.rows) return;
  // Near-certain positives: max is own, and the difference of the two must not round the rest away.
  const float loss = (p.max[r] - p.own[r]) + logf(p.sum[r]);
  const float d_own = expm1f(-loss) * static_cast<float>(p.scale);
  for (int64_t k = lane * V; k < p.width && p.d_h != nullptr; k += kLanes * V) {
    const int64_t at = r * p.width + k;
    float h[V], e[V], d_h[V];
    load_many(static_cast<const H*>(p.h) + at, h);
    load_many(static_cast<const E*>(p.positive) + at, e);
    load_many(static_cast<H*>(p.d_h) + at, d_h);
#pragma unroll
    for (int i = 0; i < V; ++i) d_h[i] = fmaf(d_own, e[i], d_h[i]), h[i] *= d_own;
    store_many(static_cast<H*>(p.d_h) + at, d_h);
    store_many(static_cast<E*>(p.d_positive) + at, h);
  }
  if (lane == 0) p.loss[r] = loss;  // last: no load waits for it
}

template <class H, class E, int V, int kLanes>
void launch(const SoftmaxPositive& p, bool is_backward) {
  const auto blocks = static_cast<unsigned>(divide_up(p.rows, int64_t{kThreads / kLanes}));
  auto* kernel = is_backward ? backward<H, E, V, kLanes> : forward<H, E, V, kLanes>;
  kernel<<<blocks, kThreads, 0, stream_of(p.stream)>>>(p);
}

void dispatch(const SoftmaxPositive& p, bool is_backward) {
  if (p.rows == 0) return;
  with_element(p.h_element, [&](auto h) {
    with_element(p.positive_element, [&](auto e) {
      using H = decltype(h);
      using E = decltype(e);
      const bool fits =
          p.width % 8 == 0 &&
          vectors_fit(8, 2, static_cast<const char*>(p.h), static_cast<const char*>(p.positive),
                      static_cast<const char*>(p.d_h), static_cast<const char*>(p.d_positive));
      if (!fits)
        launch<H, E, 1, 32>(p, is_backward);
      else if (p.width <= 64)
        launch<H, E, 8, 8>(p, is_backward);
      else
        launch<H, E, 8, 32>(p, is_backward);
    });
  });
  check_launch(is_backward ? "softmax positive backward" : "softmax positive");
}

}  // namespace

void softmax_positive_forward_cuda(const SoftmaxPositive& p) { dispatch(p, false); }
void softmax_positive_backward_cuda(const SoftmaxPositive& p) { dispatch(p, true); }

}  // namespace tautline::kernels
