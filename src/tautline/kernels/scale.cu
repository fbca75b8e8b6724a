// 16 bytes a thread, twice: libtorch's product with a number on the device takes numbers one by
// one, at 40 % of the copy rate.
#include "tautline/kernels/scale.h"
#include "tautline/kernels/vector.cuh"

namespace tautline::kernels {
namespace {

constexpr int kThreads = 256, kLoads = 2;

template <class T, int V>
__global__ void __launch_bounds__(kThreads) scale(Scale p) {
  const auto* x = static_cast<const T*>(p.x);
  auto* y = static_cast<T*>(p.y);
  const float a = *p.a;
  const int64_t first = (int64_t{blockIdx.x} * kThreads * kLoads + threadIdx.x) * V;
  float v[kLoads][V];
#pragma unroll
  for (int i = 0; i < kLoads; ++i)
    if (const int64_t at = first + i * kThreads * V; at < p.count) load_vector(x + at, v[i]);
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int64_t at = first + i * kThreads * V;
    if (at >= p.count) continue;
#pragma unroll
    for (int k = 0; k < V; ++k) v[i][k] *= a;
    store_vector(y + at, v[i]);
  }
}

template <class T, int V>
void launch(const Scale& p) {
  const int64_t blocks = divide_up(p.count, int64_t{kThreads} * kLoads * V);
  scale<T, V><<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(p.stream)>>>(p);
}

}  // namespace

void scale_cuda(const Scale& p) {
  if (p.count == 0) return;
  with_element(p.element, [&](auto zero) {
    using T = decltype(zero);
    const bool fits = vectors_fit(p.count, sizeof(T), static_cast<const char*>(p.x),
                                  static_cast<const char*>(p.y));
    fits ? launch<T, kVector<T>>(p) : launch<T, 1>(p);
  });
  check_launch("scale");
}

}  // namespace tautline::kernels
