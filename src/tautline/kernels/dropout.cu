// Dropout on the GPU, one pass: a thread owns a vector of channels and goes down the rows of its
// block; one philox block covers four channels, and the mask is never stored.
#include "tautline/kernels/dropout.h"
#include "tautline/kernels/vector.cuh"

namespace tautline::kernels {
namespace {

constexpr int kThreads = 256;

/// Multiplies `value` by keep / (1 - p) for V channels from d.
template <int V>
__device__ __forceinline__ void mask(const Dropout& p, int64_t row, int64_t d, float keep_scale,
                                     float (&value)[V]) {
  const auto sample = static_cast<uint64_t>(p.sample[row]);
  const auto position = static_cast<uint32_t>(p.position[row]);
  constexpr int kBlock = V < 4 ? V : 4;
#pragma unroll
  for (int i = 0; i < V; i += kBlock) {
    const Philox4 bits = philox(p.key, static_cast<uint32_t>((d + i) / 4), position,
                                static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32));
#pragma unroll
    for (int k = 0; k < kBlock; ++k) {
      const uint32_t word = V == 1 ? bits.v[d % 4] : bits.v[k];
      value[i + k] = uniform01(word) >= static_cast<float>(p.p) ? value[i + k] * keep_scale : 0.f;
    }
  }
}

template <class T, int V>
__global__ void __launch_bounds__(kThreads) drop(Dropout p, float keep_scale) {
  const int64_t d = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * V;
  if (d >= p.width) return;
  float bias[V] = {}, total[V] = {};
  if (p.bias != nullptr) load_floats(p.bias + d, bias);
#pragma unroll 2
  for (int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    const int64_t at = row * p.width + d;
    float value[V], past[V] = {};
    load_vector(static_cast<const T*>(p.x) + at, value);
    if (p.residual != nullptr) load_vector(static_cast<const T*>(p.residual) + at, past);
#pragma unroll
    for (int i = 0; i < V; ++i) value[i] += bias[i];
    mask(p, row, d, keep_scale, value);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      total[i] += value[i];
      value[i] += past[i];
    }
    store_vector(static_cast<T*>(p.out) + at, value);
  }
  if (p.d_bias == nullptr) return;
#pragma unroll
  for (int i = 0; i < V; ++i) p.workspace[blockIdx.y * p.width + d + i] = total[i];
}

template <class T, int V>
void launch(const Dropout& p) {
  const int64_t vectors = divide_up(p.width, int64_t{V});
  const int64_t columns = divide_up(vectors, int64_t{kThreads});
  const int64_t threads = divide_up(divide_up(vectors, columns), int64_t{kWarp}) * kWarp;
  const int64_t rows = p.d_bias != nullptr ? p.partials : dropout_partials_cuda(p.rows, p.width);
  const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>(rows));
  drop<T, V><<<grid, static_cast<unsigned>(threads), 0, stream_of(p.stream)>>>(
      p, static_cast<float>(1.0 / (1.0 - p.p)));
}

}  // namespace

int64_t dropout_partials_cuda(int64_t rows, int64_t width) {
  const int64_t most = 32 * int64_t{multiprocessors()} / divide_up(width + 1, int64_t{2048});
  return std::max<int64_t>(1, std::min({rows / 16, most, int64_t{65535}}));
}

void dropout_cuda(const Dropout& p) {
  if (p.rows > 0 && p.width > 0)
    with_element(p.element, [&](auto zero) {
      using T = decltype(zero);
      const bool fits =
          vectors_fit(p.width, sizeof(T), static_cast<const char*>(p.x), p.bias,
                      static_cast<const char*>(p.residual), static_cast<const char*>(p.out));
      fits ? launch<T, kVector<T>>(p) : launch<T, 1>(p);
    });
  check_launch("dropout");
  if (p.d_bias != nullptr)
    launch_sum_columns(p.workspace, p.rows > 0 ? p.partials : 0, p.width, p.width, p.d_bias,
                       stream_of(p.stream));
}

}  // namespace tautline::kernels
