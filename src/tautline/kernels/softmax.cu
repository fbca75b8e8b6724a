// Row passes over a chunk of logits on the GPU. Statistics in one read (running maximum and sum,
// merged over lanes and warps in a fixed tree); the gradient in one read and one write, in place. A
// warp takes a row of up to 2,048 classes, a block a longer one.
#include <limits>

#include "tautline/kernels/softmax.h"
#include "tautline/kernels/vector.cuh"

namespace tautline::kernels {
namespace {

constexpr int kThreads = 256;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

/// x_j of V neighbouring classes.
template <int V, class T>
__device__ __forceinline__ void corrected(const SoftmaxRows& p, const T* row, int64_t row_id,
                                          int64_t j, float (&x)[V]) {
  load_vector(row + j, x);
  const auto scale = static_cast<float>(p.scale);
  float log_q[V] = {};
  if (p.log_q != nullptr) load_floats(p.log_q + j, log_q);
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = x[i] * scale - log_q[i];
  if (p.column_id == nullptr || p.row_id == nullptr) return;
  if constexpr (V == 1) {
    if (p.column_id[j] == row_id) x[0] = kLowest;
  } else {  // two ids a load: by single ones they would take longer than the logits
    const auto* ids = reinterpret_cast<const longlong2*>(p.column_id + j);
#pragma unroll
    for (int i = 0; i < V; i += 2) {
      const longlong2 two = __ldg(ids + i / 2);
      if (two.x == row_id) x[i] = kLowest;
      if (two.y == row_id) x[i + 1] = kLowest;
    }
  }
}

struct Running {
  float max = kLowest, sum = 0;
  __device__ void merge(float other_max, float other_sum) {
    const float next = fmaxf(max, other_max);
    if (next == kLowest) return;  // nothing yet: exp(-inf + inf) would be NaN
    sum = sum * __expf(max - next) + other_sum * __expf(other_max - next);
    max = next;
  }
};

template <class T, int V, int kRowThreads>
__global__ void __launch_bounds__(kThreads) statistics(SoftmaxRows p) {
  const int lane = threadIdx.x % kRowThreads;
  const int64_t r = int64_t{blockIdx.x} * (kThreads / kRowThreads) + threadIdx.x / kRowThreads;
  const bool active = r < p.rows;
  Running running;
  if (active) {
    const T* row = static_cast<const T*>(p.logits) + r * p.row_stride;
    const int64_t row_id = p.row_id != nullptr ? p.row_id[r] : 0;
#pragma unroll 4
    for (int64_t j = int64_t{lane} * V; j < p.classes; j += kRowThreads * V) {
      float x[V], max = kLowest, sum = 0;
      corrected(p, row, row_id, j, x);
#pragma unroll
      for (int i = 0; i < V; ++i) max = fmaxf(max, x[i]);
      if (max > kLowest)
#pragma unroll
        for (int i = 0; i < V; ++i) sum += __expf(x[i] - max);
      running.merge(max, sum);
    }
    if (lane == 0) {
      if (p.extra != nullptr) running.merge(p.extra[r], p.extra[r] > kLowest ? 1.f : 0.f);
      const int64_t target = p.target != nullptr ? p.target[r] : -1;
      if (target >= 0) {
        float x[1];
        corrected(p, row, row_id, target, x);
        p.target_logit[r] = x[0];
      }
    }
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    running.merge(__shfl_xor_sync(0xffffffffu, running.max, offset),
                  __shfl_xor_sync(0xffffffffu, running.sum, offset));
  if constexpr (kRowThreads > kWarp) {
    __shared__ float maxima[kThreads / kWarp], sums[kThreads / kWarp];
    if (threadIdx.x % kWarp == 0) {
      maxima[threadIdx.x / kWarp] = running.max;
      sums[threadIdx.x / kWarp] = running.sum;
    }
    __syncthreads();
    if (threadIdx.x == 0)
      for (int w = 1; w < kThreads / kWarp; ++w) running.merge(maxima[w], sums[w]);
  }
  if (!active || lane != 0) return;
  p.max[r] = running.max;
  p.sum[r] = running.sum;
}

template <class T, int V, int kRowThreads>
__global__ void __launch_bounds__(kThreads) gradient(SoftmaxRows p) {
  const int lane = threadIdx.x % kRowThreads;
  const int64_t r = int64_t{blockIdx.x} * (kThreads / kRowThreads) + threadIdx.x / kRowThreads;
  if (r >= p.rows) return;
  T* row = static_cast<T*>(p.logits) + r * p.row_stride;
  const int64_t row_id = p.row_id != nullptr ? p.row_id[r] : 0;
  const int64_t target = p.target != nullptr ? p.target[r] : -1;
  const float lse = p.lse[r];
  const auto weight = static_cast<float>(p.weight);
#pragma unroll 2
  for (int64_t j = int64_t{lane} * V; j < p.classes; j += kRowThreads * V) {
    float x[V];
    corrected(p, row, row_id, j, x);
#pragma unroll
    for (int i = 0; i < V; ++i)
      x[i] = (__expf(x[i] - lse) - (j + i == target ? 1.f : 0.f)) * weight;
    store_vector(row + j, x);
  }
}

template <class T, int V, int kRowThreads>
void launch(const SoftmaxRows& p, bool is_gradient) {
  const auto blocks = static_cast<unsigned>(divide_up(p.rows, int64_t{kThreads / kRowThreads}));
  if (is_gradient)
    gradient<T, V, kRowThreads><<<blocks, kThreads, 0, stream_of(p.stream)>>>(p);
  else
    statistics<T, V, kRowThreads><<<blocks, kThreads, 0, stream_of(p.stream)>>>(p);
}

void dispatch(const SoftmaxRows& p, bool is_gradient) {
  if (p.rows == 0) return;
  with_element(p.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int V = kVector<T>;
    const bool fits =
        p.classes % V == 0 && vectors_fit(p.row_stride, sizeof(T),
                                          static_cast<const char*>(p.logits), p.log_q, p.column_id);
    const bool wide = p.classes > 2048;
    if (fits)
      wide ? launch<T, V, kThreads>(p, is_gradient) : launch<T, V, kWarp>(p, is_gradient);
    else
      wide ? launch<T, 1, kThreads>(p, is_gradient) : launch<T, 1, kWarp>(p, is_gradient);
  });
  check_launch(is_gradient ? "softmax gradient" : "softmax statistics");
}

/// A warp a row: its few classes of the history, distinct, so no two lanes meet.
template <class T>
__global__ void __launch_bounds__(kThreads) repeat_add(SoftmaxRows p) {
  const int64_t r = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (r >= p.rows) return;
  T* row = static_cast<T*>(p.logits) + r * p.row_stride;
  const float bias = *p.repeat.bias;
  for (int64_t i = p.repeat.first[r] + threadIdx.x % kWarp; i < p.repeat.last[r]; i += kWarp) {
    const int64_t j = p.repeat.column[i];
    if (j >= 0) row[j] = from_float<T>(to_float(row[j]) + bias);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) repeat_sum(SoftmaxRows p) {
  const int64_t r = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (r >= p.rows) return;
  const T* row = static_cast<const T*>(p.logits) + r * p.row_stride;
  float sum = 0;
  for (int64_t i = p.repeat.first[r] + threadIdx.x % kWarp; i < p.repeat.last[r]; i += kWarp) {
    const int64_t j = p.repeat.column[i];
    if (j >= 0) sum += to_float(row[j]);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) p.repeat.d_bias[r] = sum;
}

/// A warp a row; the second read of a row comes from the caches.
template <class T>
__global__ void __launch_bounds__(kThreads) normalize(L2Normalize p) {
  const int64_t r = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (r >= p.rows) return;
  const T* x = static_cast<const T*>(p.x) + r * p.width;
  float squares = 0;
  for (int64_t e = threadIdx.x % kWarp; e < p.width; e += kWarp)
    squares = fmaf(to_float(x[e]), to_float(x[e]), squares);
  const float norm = fmaxf(sqrtf(warp_sum(squares)), static_cast<float>(p.eps));
  for (int64_t e = threadIdx.x % kWarp; e < p.width; e += kWarp)
    static_cast<T*>(p.y)[r * p.width + e] = from_float<T>(to_float(x[e]) / norm);
  if (threadIdx.x % kWarp == 0) p.norm[r] = norm;
}

template <class T>
__global__ void __launch_bounds__(kThreads) normalize_backward(L2Normalize p) {
  const int64_t r = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (r >= p.rows) return;
  const T* y = static_cast<const T*>(p.y) + r * p.width;
  const T* d_y = static_cast<const T*>(p.d_y) + r * p.width;
  float dot = 0;
  for (int64_t e = threadIdx.x % kWarp; e < p.width; e += kWarp)
    dot = fmaf(to_float(y[e]), to_float(d_y[e]), dot);
  dot = warp_sum(dot);
  const float norm = p.norm[r];
  for (int64_t e = threadIdx.x % kWarp; e < p.width; e += kWarp)
    static_cast<T*>(p.d_x)[r * p.width + e] =
        from_float<T>((to_float(d_y[e]) - dot * to_float(y[e])) / norm);
}

unsigned warps_for(int64_t rows) {
  return static_cast<unsigned>(divide_up(rows, int64_t{kThreads / kWarp}));
}

}  // namespace

void softmax_statistics_cuda(const SoftmaxRows& p) { dispatch(p, false); }
void softmax_gradient_cuda(const SoftmaxRows& p) { dispatch(p, true); }

void repeat_bias_add_cuda(const SoftmaxRows& p) {
  if (p.rows == 0) return;
  with_element(p.element, [&](auto zero) {
    repeat_add<decltype(zero)><<<warps_for(p.rows), kThreads, 0, stream_of(p.stream)>>>(p);
  });
  check_launch("repeat bias");
}

void repeat_bias_sum_cuda(const SoftmaxRows& p) {
  if (p.rows == 0) return;
  with_element(p.element, [&](auto zero) {
    repeat_sum<decltype(zero)><<<warps_for(p.rows), kThreads, 0, stream_of(p.stream)>>>(p);
  });
  check_launch("repeat bias gradient");
}

void l2_normalize_forward_cuda(const L2Normalize& p) {
  if (p.rows == 0) return;
  with_element(p.element, [&](auto zero) {
    normalize<decltype(zero)><<<warps_for(p.rows), kThreads, 0, stream_of(p.stream)>>>(p);
  });
  check_launch("normalisation");
}

void l2_normalize_backward_cuda(const L2Normalize& p) {
  if (p.rows == 0) return;
  with_element(p.element, [&](auto zero) {
    normalize_backward<decltype(zero)><<<warps_for(p.rows), kThreads, 0, stream_of(p.stream)>>>(p);
  });
  check_launch("normalisation backward");
}

}  // namespace tautline::kernels
