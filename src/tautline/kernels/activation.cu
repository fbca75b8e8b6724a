// SwiGLU and GELU on the GPU, one pass each way. A thread owns a vector of columns and goes down
// the rows of its block, so that the bias and its gradient stay in registers; partial sums of the
// bias gradient are added over blocks in order.
#include "tautline/kernels/activation.h"
#include "tautline/kernels/vector.cuh"

namespace tautline::kernels {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }
// By erff, not erfcf, which costs twice as much: x Phi(x) is as good in absolute terms.
__device__ __forceinline__ float normal_cdf(float x) {
  return fmaf(0.5f, erff(x * 0.707106781f), 0.5f);
}
__device__ __forceinline__ float normal_density(float x) {
  return 0.398942280f * __expf(-0.5f * x * x);
}

/// The rows of a block: blockIdx.y, + gridDim.y, ...
template <class T, ActivationKind kind, int V>
__global__ void __launch_bounds__(kThreads) forward(Activation p) {
  constexpr bool kGated = kind == ActivationKind::kSwiglu;
  const int64_t d = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * V;
  if (d >= p.width) return;
  const int64_t input = kGated ? 2 * p.width : p.width;
  float gate_bias[V] = {}, up_bias[V] = {};
  if (p.bias != nullptr) {
    load_floats(p.bias + d, gate_bias);
    if constexpr (kGated) load_floats(p.bias + p.width + d, up_bias);
  }
#pragma unroll 4
  for (int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    const T* x = static_cast<const T*>(p.x) + row * input + d;
    float gate[V], up[V];
    load_vector(x, gate);
    if constexpr (kGated) load_vector(x + p.width, up);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float g = gate[i] + gate_bias[i];
      gate[i] = kGated ? g * sigmoid(g) * (up[i] + up_bias[i]) : g * normal_cdf(g);
    }
    store_vector(static_cast<T*>(p.out) + row * p.width + d, gate);
  }
}

template <class T, ActivationKind kind, int V>
__global__ void __launch_bounds__(kThreads) backward(Activation p) {
  constexpr bool kGated = kind == ActivationKind::kSwiglu;
  const int64_t d = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * V;
  if (d >= p.width) return;
  const int64_t input = kGated ? 2 * p.width : p.width;
  float gate_bias[V] = {}, up_bias[V] = {}, gate_total[V] = {}, up_total[V] = {};
  if (p.bias != nullptr) {
    load_floats(p.bias + d, gate_bias);
    if constexpr (kGated) load_floats(p.bias + p.width + d, up_bias);
  }
#pragma unroll 4
  for (int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    const int64_t at = row * input + d;
    float gate[V], up[V], dy[V];
    load_vector(static_cast<const T*>(p.x) + at, gate);
    if constexpr (kGated) load_vector(static_cast<const T*>(p.x) + at + p.width, up);
    load_vector(static_cast<const T*>(p.d_out) + row * p.width + d, dy);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float g = gate[i] + gate_bias[i];
      if constexpr (kGated) {
        const float s = sigmoid(g), u = up[i] + up_bias[i];
        gate[i] = dy[i] * u * s * (1.0f + g * (1.0f - s));
        up[i] = dy[i] * g * s;
        up_total[i] += up[i];
      } else {
        gate[i] = dy[i] * (normal_cdf(g) + g * normal_density(g));
      }
      gate_total[i] += gate[i];
    }
    store_vector(static_cast<T*>(p.d_x) + at, gate);
    if constexpr (kGated) store_vector(static_cast<T*>(p.d_x) + at + p.width, up);
  }
  if (p.d_bias == nullptr) return;
  float* partial = p.workspace + blockIdx.y * input + d;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    partial[i] = gate_total[i];
    if constexpr (kGated) partial[p.width + i] = up_total[i];
  }
}

template <class T, ActivationKind kind, int V>
void launch(const Activation& p, bool is_backward) {
  const int64_t vectors = divide_up(p.width, int64_t{V});
  const int64_t columns = divide_up(vectors, int64_t{kThreads});
  const int64_t threads = divide_up(divide_up(vectors, columns), int64_t{kWarp}) * kWarp;
  const bool summed = is_backward && p.d_bias != nullptr;
  const int64_t rows = summed ? p.partials : activation_partials_cuda(p.rows, p.input_width());
  const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>(rows));
  const auto block = static_cast<unsigned>(threads);
  if (is_backward)
    backward<T, kind, V><<<grid, block, 0, stream_of(p.stream)>>>(p);
  else
    forward<T, kind, V><<<grid, block, 0, stream_of(p.stream)>>>(p);
}

void dispatch(const Activation& p, bool is_backward) {
  with_element(p.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int V = kVector<T>;
    using enum ActivationKind;
    const bool fits = vectors_fit(
        p.width, sizeof(T), static_cast<const char*>(p.x), p.bias, static_cast<const char*>(p.out),
        static_cast<const char*>(p.d_out), static_cast<const char*>(p.d_x));
    if (p.kind == kSwiglu)
      fits ? launch<T, kSwiglu, V>(p, is_backward) : launch<T, kSwiglu, 1>(p, is_backward);
    else
      fits ? launch<T, kGelu, V>(p, is_backward) : launch<T, kGelu, 1>(p, is_backward);
  });
  check_launch(is_backward ? "activation backward" : "activation");
}

}  // namespace

/// Enough blocks to fill the device several times over, at least 16 rows each.
int64_t activation_partials_cuda(int64_t rows, int64_t input_width) {
  const int64_t most = 16 * int64_t{multiprocessors()} / divide_up(input_width + 1, int64_t{4096});
  return std::max<int64_t>(1, std::min({rows / 16, most, int64_t{65535}}));
}

void activation_forward_cuda(const Activation& p) {
  if (p.rows > 0 && p.width > 0) dispatch(p, false);
}

void activation_backward_cuda(const Activation& p) {
  if (p.rows > 0 && p.width > 0) dispatch(p, true);
  if (p.d_bias == nullptr) return;
  const int64_t input = p.input_width();
  launch_sum_columns(p.workspace, p.rows > 0 ? p.partials : 0, input, input, p.d_bias,
                     stream_of(p.stream));
}

}  // namespace tautline::kernels
