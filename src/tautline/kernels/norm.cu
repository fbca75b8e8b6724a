// RMSNorm and LayerNorm on the GPU: W warps of a block hold a row in registers, two 16-byte words a
// lane, so that each way is one pass over memory. (A warp alone with 8 words a lane for 2,048
// columns: 71 % of the copy rate forward and 55 % backward, for want of warps.) The backward's
// weight gradients stay in registers over all rows of a warp, are summed over the block's rows in
// order, then over blocks in order: no atomics.
#include "tautline/kernels/norm.h"
#include "tautline/kernels/vector.cuh"

namespace tautline::kernels {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int64_t kBlocksPerProcessor = 4;

/// Where this thread is in a row that W warps share.
template <int W>
struct Place {
  static constexpr int kRows = kWarps / W;  // of a block at a time
  int lane, row;
  __device__ Place() : lane(threadIdx.x % (W * kWarp)), row(threadIdx.x / (W * kWarp)) {}
};

/// Sum over the threads of a row, for all rows of the block. `slot` alternates, so that one barrier
/// a sum is enough. All threads of the block come here together.
template <int W>
__device__ __forceinline__ float row_sum(float value, int slot) {
  value = warp_sum(value);
  if constexpr (W == 1) return value;
  __shared__ float warps[4][kWarps];
  if (threadIdx.x % kWarp == 0) warps[slot % 4][threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int w = 0; w < W; ++w) total += warps[slot % 4][threadIdx.x / kWarp / W * W + w];
  return total;
}

template <class T, bool layer, int V, int C, int W>
__global__ void __launch_bounds__(kThreads) forward(NormForward p) {
  const Place<W> place;
  const int width = static_cast<int>(p.width);
  const int64_t row = int64_t{blockIdx.x} * Place<W>::kRows + place.row;
  const bool active = row < p.rows;
  const int64_t base = row * width;
  const T* residual = static_cast<const T*>(p.residual);
  float s[C][V] = {}, r[C][V] = {};
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const int d = (c * W * kWarp + place.lane) * V;
    if (!active || d >= width) continue;
    load_vector(static_cast<const T*>(p.x) + base + d, s[c]);
    if (residual != nullptr) load_vector(residual + base + d, r[c]);
  }
  float total = 0, squares = 0, mean = 0;
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const int d = (c * W * kWarp + place.lane) * V;
    if (residual != nullptr && active && d < width) {
#pragma unroll
      for (int i = 0; i < V; ++i) s[c][i] = to_float(from_float<T>(s[c][i] + r[c][i]));
      store_vector(static_cast<T*>(p.sum) + base + d, s[c]);
    }
#pragma unroll
    for (int i = 0; i < V; ++i) total += s[c][i];  // zeros beyond the row
  }
  if constexpr (layer) mean = row_sum<W>(total, 0) / static_cast<float>(width);
#pragma unroll
  for (int c = 0; c < C; ++c)
    if ((c * W * kWarp + place.lane) * V < width)
#pragma unroll
      for (int i = 0; i < V; ++i) squares += (s[c][i] - mean) * (s[c][i] - mean);
  const float rstd =
      1.0f / sqrtf(row_sum<W>(squares, 1) / static_cast<float>(width) + static_cast<float>(p.eps));
  if (!active) return;
  if (place.lane == 0) {
    if (layer && p.mean != nullptr) p.mean[row] = mean;
    p.rstd[row] = rstd;
  }
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const int d = (c * W * kWarp + place.lane) * V;
    if (d >= width) continue;
    float w[V], b[V] = {};
    load_floats(p.weight + d, w);
    if constexpr (layer) load_floats(p.bias + d, b);
#pragma unroll
    for (int i = 0; i < V; ++i) s[c][i] = (s[c][i] - mean) * rstd * w[i] + b[i];
    store_vector(static_cast<T*>(p.out) + base + d, s[c]);
  }
}

/// Sums a block's columns over its rows through shared memory, the first row first.
template <int V, int C, int W>
__device__ void store_partial(const float (&sum)[C][V], int width, float* out) {
  constexpr int kRows = Place<W>::kRows, kColumns = W * kWarp * V;
  __shared__ float columns[kRows][kColumns];
  const Place<W> place;
#pragma unroll
  for (int c = 0; c < C; ++c) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < V; ++i) columns[place.row][place.lane * V + i] = sum[c][i];
    __syncthreads();
    for (int d = threadIdx.x; d < kColumns; d += kThreads) {
      float total = 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) total += columns[r][d];
      if (c * kColumns + d < width) out[c * kColumns + d] = total;
    }
  }
}

template <class T, bool layer, int V, int C, int W>
__global__ void __launch_bounds__(kThreads) backward(NormBackward p) {
  const Place<W> place;
  const int width = static_cast<int>(p.width);
  const auto* d_sum = static_cast<const T*>(p.d_sum);
  float d_weight[C][V] = {}, d_bias[layer ? C : 1][V] = {};
  int slot = 0;
  for (int64_t first = int64_t{blockIdx.x} * Place<W>::kRows; first < p.rows;
       first += int64_t{gridDim.x} * Place<W>::kRows) {
    const int64_t row = first + place.row, base = row * width;
    const bool active = row < p.rows;
    const float mean = layer && active ? p.mean[row] : 0.f, rstd = active ? p.rstd[row] : 0.f;
    float n[C][V] = {}, g[C][V] = {}, past[C][V] = {}, g_total = 0, gn_total = 0;
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const int d = (c * W * kWarp + place.lane) * V;
      if (!active || d >= width) continue;
      load_vector(static_cast<const T*>(p.s) + base + d, n[c]);
      load_vector(static_cast<const T*>(p.d_out) + base + d, g[c]);
      if (d_sum != nullptr) load_vector(d_sum + base + d, past[c]);
    }
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const int d = (c * W * kWarp + place.lane) * V;
      if (!active || d >= width) continue;
      float w[V];
      load_floats(p.weight + d, w);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        n[c][i] = (n[c][i] - mean) * rstd;
        d_weight[c][i] += g[c][i] * n[c][i];
        if constexpr (layer) d_bias[c][i] += g[c][i];
        g[c][i] *= w[i];
        g_total += g[c][i];
        gn_total += g[c][i] * n[c][i];
      }
    }
    const float gn_mean = row_sum<W>(gn_total, slot++) / static_cast<float>(width);
    const float g_mean = layer ? row_sum<W>(g_total, slot++) / static_cast<float>(width) : 0.f;
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const int d = (c * W * kWarp + place.lane) * V;
      if (!active || d >= width) continue;
#pragma unroll
      for (int i = 0; i < V; ++i) past[c][i] += rstd * (g[c][i] - g_mean - n[c][i] * gn_mean);
      store_vector(static_cast<T*>(p.d_x) + base + d, past[c]);
    }
  }
  float* out = p.workspace + int64_t{blockIdx.x} * 2 * width;
  store_partial<V, C, W>(d_weight, width, out);
  if constexpr (layer) store_partial<V, C, W>(d_bias, width, out + width);
}

/// Rows of any width: a block a row, read again where registers would have held it.
__device__ float block_sum(float value) {
  __shared__ float warps[kWarps];
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = 0;
  for (int w = 0; w < kWarps; ++w) total += warps[w];
  return total;
}

template <class T, bool layer>
__global__ void __launch_bounds__(kThreads) forward_any(NormForward p) {
  const int64_t base = int64_t{blockIdx.x} * p.width;
  const auto* x = static_cast<const T*>(p.x) + base;
  const auto* residual = static_cast<const T*>(p.residual);
  const auto s = [&](int64_t d) {
    if (residual == nullptr) return to_float(x[d]);
    return to_float(from_float<T>(to_float(x[d]) + to_float(residual[base + d])));
  };
  float total = 0, squares = 0, mean = 0;
  if constexpr (layer) {
    for (int64_t d = threadIdx.x; d < p.width; d += kThreads) total += s(d);
    mean = block_sum(total) / static_cast<float>(p.width);
  }
  for (int64_t d = threadIdx.x; d < p.width; d += kThreads)
    squares += (s(d) - mean) * (s(d) - mean);
  const float rstd =
      1.0f / sqrtf(block_sum(squares) / static_cast<float>(p.width) + static_cast<float>(p.eps));
  if (threadIdx.x == 0) {
    if (layer && p.mean != nullptr) p.mean[blockIdx.x] = mean;
    p.rstd[blockIdx.x] = rstd;
  }
  for (int64_t d = threadIdx.x; d < p.width; d += kThreads) {
    const float value = s(d);
    if (residual != nullptr) static_cast<T*>(p.sum)[base + d] = from_float<T>(value);
    static_cast<T*>(p.out)[base + d] =
        from_float<T>((value - mean) * rstd * p.weight[d] + (layer ? p.bias[d] : 0.f));
  }
}

template <class T, bool layer>
__global__ void __launch_bounds__(kThreads) backward_any(NormBackward p) {
  const int64_t base = int64_t{blockIdx.x} * p.width;
  const auto* s = static_cast<const T*>(p.s) + base;
  const auto* d_out = static_cast<const T*>(p.d_out) + base;
  const auto* d_sum = static_cast<const T*>(p.d_sum);
  const float mean = layer ? p.mean[blockIdx.x] : 0.f, rstd = p.rstd[blockIdx.x];
  float g_total = 0, gn_total = 0;
  for (int64_t d = threadIdx.x; d < p.width; d += kThreads) {
    const float g = to_float(d_out[d]) * p.weight[d];
    g_total += g;
    gn_total += g * (to_float(s[d]) - mean) * rstd;
  }
  const float gn_mean = block_sum(gn_total) / static_cast<float>(p.width);
  const float g_mean = layer ? block_sum(g_total) / static_cast<float>(p.width) : 0.f;
  for (int64_t d = threadIdx.x; d < p.width; d += kThreads) {
    const float g = to_float(d_out[d]) * p.weight[d], n = (to_float(s[d]) - mean) * rstd;
    const float past = d_sum != nullptr ? to_float(d_sum[base + d]) : 0.f;
    static_cast<T*>(p.d_x)[base + d] = from_float<T>(past + rstd * (g - g_mean - n * gn_mean));
  }
}

/// Weight gradients for any width: a thread a column, over the rows of blockIdx.y.
template <class T, bool layer>
__global__ void weights_any(NormBackward p) {
  const int64_t d = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (d >= p.width) return;
  float d_weight = 0, d_bias = 0;
  for (int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    const float g = to_float(static_cast<const T*>(p.d_out)[row * p.width + d]);
    const float s = to_float(static_cast<const T*>(p.s)[row * p.width + d]);
    d_weight += g * (s - (layer ? p.mean[row] : 0.f)) * p.rstd[row];
    d_bias += g;
  }
  float* out = p.workspace + int64_t{blockIdx.y} * 2 * p.width;
  out[d] = d_weight;
  if constexpr (layer) out[p.width + d] = d_bias;
}

template <int chunks, int warps>
struct Registers {
  static constexpr int kChunks = chunks, kRowWarps = warps;
};

/// Calls function(constants C, W) for rows that fit the registers of a block; false if they do not.
template <class T, class Function>
bool with_registers(int64_t width, Function&& function) {
  const int64_t vectors = divide_up(width, int64_t{kWarp * kVector<T>});
  if (vectors <= 1) return function(Registers<1, 1>{}), true;
  if (vectors <= 2) return function(Registers<2, 1>{}), true;
  if (vectors <= 4) return function(Registers<2, 2>{}), true;
  if (vectors <= 8) return function(Registers<2, 4>{}), true;
  if (vectors <= 16) return function(Registers<2, 8>{}), true;
  return false;
}

template <class T, bool layer>
void launch_forward(const NormForward& p) {
  const cudaStream_t stream = stream_of(p.stream);
  const bool fits = vectors_fit(
      p.width, sizeof(T), static_cast<const char*>(p.x), static_cast<const char*>(p.residual),
      static_cast<const char*>(p.sum), static_cast<const char*>(p.out), p.weight, p.bias);
  if (fits && with_registers<T>(p.width, [&](auto registers) {
        constexpr int C = decltype(registers)::kChunks, W = decltype(registers)::kRowWarps;
        forward<T, layer, kVector<T>, C, W>
            <<<static_cast<unsigned>(divide_up(p.rows, int64_t{kWarps / W})), kThreads, 0,
               stream>>>(p);
      }))
    return;
  forward_any<T, layer><<<static_cast<unsigned>(p.rows), kThreads, 0, stream>>>(p);
}

template <class T, bool layer>
void launch_backward(const NormBackward& p) {
  const cudaStream_t stream = stream_of(p.stream);
  const auto partials = static_cast<unsigned>(p.partials);
  const bool fits = vectors_fit(p.width, sizeof(T), static_cast<const char*>(p.d_out),
                                static_cast<const char*>(p.d_sum), static_cast<const char*>(p.s),
                                static_cast<const char*>(p.d_x), p.weight);
  if (fits && with_registers<T>(p.width, [&](auto registers) {
        constexpr int C = decltype(registers)::kChunks, W = decltype(registers)::kRowWarps;
        backward<T, layer, kVector<T>, C, W><<<partials, kThreads, 0, stream>>>(p);
      }))
    return;
  backward_any<T, layer><<<static_cast<unsigned>(p.rows), kThreads, 0, stream>>>(p);
  const auto columns = static_cast<unsigned>(divide_up(p.width, int64_t{kThreads}));
  weights_any<T, layer><<<dim3(columns, partials), kThreads, 0, stream>>>(p);
}

}  // namespace

int64_t norm_partials_cuda(int64_t rows, int64_t width) {
  return std::max<int64_t>(
      1, std::min(divide_up(rows, int64_t{kWarps}), kBlocksPerProcessor * multiprocessors()));
}

void norm_forward_cuda(const NormForward& p) {
  if (p.rows == 0 || p.width == 0) return;
  with_element(p.element, [&](auto zero) {
    using T = decltype(zero);
    p.kind == NormKind::kLayer ? launch_forward<T, true>(p) : launch_forward<T, false>(p);
  });
  check_launch("norm");
}

void norm_backward_cuda(const NormBackward& p) {
  const cudaStream_t stream = stream_of(p.stream);
  const bool layer = p.kind == NormKind::kLayer;
  if (p.rows > 0 && p.width > 0)
    with_element(p.element, [&](auto zero) {
      using T = decltype(zero);
      layer ? launch_backward<T, true>(p) : launch_backward<T, false>(p);
    });
  check_launch("norm backward");
  const int64_t partials = p.rows > 0 ? p.partials : 0;
  launch_sum_columns(p.workspace, partials, 2 * p.width, p.width, p.d_weight, stream);
  if (layer && p.d_bias != nullptr)
    launch_sum_columns(p.workspace + p.width, partials, 2 * p.width, p.width, p.d_bias, stream);
}

}  // namespace tautline::kernels
