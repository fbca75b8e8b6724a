#include "tautline/kernels/attention_few_keys.cuh"
#include "tautline/kernels/attention_portable_launch.cuh"
#include "tautline/kernels/vector.cuh"

namespace tautline::kernels {
namespace portable {
namespace {

template <class T>
__device__ float dot(const T* a, const T* b, int64_t count) {
  float sum = 0.0f;
  for (int64_t d = threadIdx.x % kWarp; d < count; d += kWarp)
    sum += to_float(a[d]) * to_float(b[d]);
  return warp_sum(sum);
}

/// The sequence that has a row.
__device__ inline int64_t sequence_at(const AttentionProblem& p, int64_t row) {
  if (p.q_offsets == nullptr) return row / p.max_q;
  int64_t low = 0, high = p.sequences - 1;  // the last that starts at `row` or before
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (p.q_offsets[middle] <= row)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

/// delta[h][row] = d_o . o, or the sum over keys where they are few, a warp each.
template <class T>
__global__ void delta_kernel(const Scores a) {
  const AttentionProblem& p = a.p;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / kWarp);
  int64_t at = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  for (; at < p.heads * p.rows; at += warps) {
    const int64_t head = at / p.rows, row = at % p.rows;
    const Sequence s = sequence_of(p, sequence_at(p, row));
    const int64_t i = row - s.row, kv_head = head / (p.heads / p.kv_heads);
    const KeyRange keys = visible_keys(p.window, i, s.nq, s.nk);
    const T* d_o = row_of<T>(p.d_o, row, head);
    float delta = 0.0f;
    if (few_keys(keys)) {
      for (int64_t j = keys.first; j < keys.last; ++j) {
        const float product =
            dot(row_of<T>(p.q, s.q + i, head), row_of<T>(p.k, s.k + j, kv_head), p.head_dim);
        const float score = product * a.scale + bias_of(p, s, head, i, j);
        delta +=
            __expf(score - a.lse[at]) * dot(d_o, row_of<T>(p.v, s.k + j, kv_head), p.value_dim);
      }
    } else {
      delta = dot(d_o, row_of<T>(p.o, row, head), p.value_dim);
    }
    if (threadIdx.x % kWarp == 0) a.delta[at] = delta;
  }
}

/// Products of a tile of queries with a tile of keys, q . k and d_o . v, and from them each pair.
template <class T, int P>
constexpr size_t d_query_bytes() {
  using S = Tiles<P>;
  return (2 * S::kRows * P + 2 * S::kOther * P + S::kRows * S::kOther) * sizeof(T) +
         (2 * S::kRows * S::kOther + S::kRows * P) * sizeof(float);
}

template <class T, int P>
__global__ void __launch_bounds__(2 * Tiles<P>::kRows)
    d_query_kernel(const Scores a, int64_t tiles, int64_t tasks) {
  using S = Tiles<P>;
  constexpr int kColumns = S::kOther, kHalf = kColumns / 2;
  Shared shared{shared_memory};
  T* q = shared.take<T>(S::kRows * P);
  T* d_o = shared.take<T>(S::kRows * P);
  T* k = shared.take<T>(kColumns * P);
  T* v = shared.take<T>(kColumns * P);
  T* d_score = shared.take<T>(S::kRows * kColumns);
  float* score = shared.take<float>(S::kRows * kColumns);
  float* product = shared.take<float>(S::kRows * kColumns);
  float* d_q = shared.take<float>(S::kRows * P);
  const AttentionProblem& p = a.p;
  const Lane lane;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const Place at = place_of(task, tiles, p.heads);
    const Sequence s = sequence_of(p, at.sequence);
    const int64_t begin = at.tile * S::kRows, kv_head = at.head / (p.heads / p.kv_heads);
    if (begin >= s.nq) continue;
    const int64_t count = min(static_cast<int64_t>(S::kRows), s.nq - begin), i = begin + lane.row;
    __syncthreads();
    load_tile<T, P>(p.q, s.q + begin, at.head, count, S::kRows, p.head_dim, q);
    load_tile<T, P>(p.d_o, s.row + begin, at.head, count, S::kRows, p.value_dim, d_o);
    for (int x = threadIdx.x; x < S::kRows * P; x += blockDim.x) d_q[x] = 0.0f;
    const KeyRange range = key_tiles(p, s, begin, begin + count, kColumns);
    for (int64_t tile = range.first; tile < range.last; ++tile) {
      const int64_t first = tile * kColumns, keys = s.nk - first;
      __syncthreads();
      load_tile<T, P>(p.k, s.k + first, kv_head, keys, kColumns, p.head_dim, k);
      load_tile<T, P>(p.v, s.k + first, kv_head, keys, kColumns, p.value_dim, v);
      __syncthreads();
      const int tile_at = lane.warp * kStep * kColumns;
      product_transposed<T, P>(q + lane.warp * kStep * P, k, kColumns, score + tile_at);
      product_transposed<T, P>(d_o + lane.warp * kStep * P, v, kColumns, product + tile_at);
      __syncwarp();
      for (int c = lane.half * kHalf; c < (lane.half + 1) * kHalf; ++c) {
        const int x = lane.row * kColumns + c;
        const Pair pair = pair_of(a, s, at.head, i, first + c, score[x], product[x]);
        d_score[x] = from_float<T>(pair.d_score * a.scale);
      }
      __syncwarp();
      add_product<T, P>(d_score + tile_at, k, kColumns, d_q + lane.warp * kStep * P);
      __syncwarp();
    }
    __syncthreads();
    if (i >= s.nq) continue;
    const int64_t row = (s.row + i) * p.d_q.token_stride + at.head * p.d_q.head_stride;
    for (int64_t d = lane.half; d < p.head_dim; d += 2) {
      const float value = d_q[lane.row * P + d];
      // Partial sums over sequences stay FP32.
      if (p.q_offsets == nullptr)
        static_cast<float*>(p.d_q.data)[row + d] = value;
      else
        static_cast<T*>(p.d_q.data)[row + d] = from_float<T>(value);
    }
  }
}

template <class T, int P>
constexpr size_t d_key_bytes() {
  using S = Tiles<P>;
  return (2 * S::kKeys * P + 2 * S::kQueries * P + 2 * S::kKeys * S::kQueries) * sizeof(T) +
         (2 * S::kKeys * S::kQueries + 2 * S::kKeys * P) * sizeof(float);
}

template <class T, int P>
__global__ void __launch_bounds__(2 * Tiles<P>::kKeys)
    d_key_kernel(const Scores a, int64_t tiles, int64_t tasks) {
  using S = Tiles<P>;
  constexpr int kColumns = S::kQueries, kHalf = kColumns / 2;
  Shared shared{shared_memory};
  T* k = shared.take<T>(S::kKeys * P);
  T* v = shared.take<T>(S::kKeys * P);
  T* q = shared.take<T>(kColumns * P);
  T* d_o = shared.take<T>(kColumns * P);
  T* weight = shared.take<T>(S::kKeys * kColumns);
  T* d_score = shared.take<T>(S::kKeys * kColumns);
  float* score = shared.take<float>(S::kKeys * kColumns);
  float* product = shared.take<float>(S::kKeys * kColumns);
  float* d_k = shared.take<float>(S::kKeys * P);
  float* d_v = shared.take<float>(S::kKeys * P);
  const AttentionProblem& p = a.p;
  const Lane lane;
  const int64_t group = p.heads / p.kv_heads;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const Place at = place_of(task, tiles, p.kv_heads);
    const Sequence s = sequence_of(p, at.sequence);
    const int64_t begin = at.tile * S::kKeys;
    if (begin >= s.nk) continue;
    const int64_t count = min(static_cast<int64_t>(S::kKeys), s.nk - begin), j = begin + lane.row;
    __syncthreads();
    load_tile<T, P>(p.k, s.k + begin, at.head, count, S::kKeys, p.head_dim, k);
    load_tile<T, P>(p.v, s.k + begin, at.head, count, S::kKeys, p.value_dim, v);
    for (int x = threadIdx.x; x < S::kKeys * P; x += blockDim.x) d_k[x] = d_v[x] = 0.0f;
    const KeyRange range = query_tiles(p, s, begin, begin + count, kColumns);
    for (int64_t head = at.head * group; head < (at.head + 1) * group; ++head) {
      for (int64_t tile = range.first; tile < range.last; ++tile) {
        const int64_t first = tile * kColumns, queries = s.nq - first;
        __syncthreads();
        load_tile<T, P>(p.q, s.q + first, head, queries, kColumns, p.head_dim, q);
        load_tile<T, P>(p.d_o, s.row + first, head, queries, kColumns, p.value_dim, d_o);
        __syncthreads();
        const int tile_at = lane.warp * kStep * kColumns;
        product_transposed<T, P>(k + lane.warp * kStep * P, q, kColumns, score + tile_at);
        product_transposed<T, P>(v + lane.warp * kStep * P, d_o, kColumns, product + tile_at);
        __syncwarp();
        for (int c = lane.half * kHalf; c < (lane.half + 1) * kHalf; ++c) {
          const int x = lane.row * kColumns + c;
          const Pair pair = pair_of(a, s, head, first + c, j, score[x], product[x]);
          weight[x] = from_float<T>(pair.weight);
          d_score[x] = from_float<T>(pair.d_score * a.scale);
        }
        __syncwarp();
        add_product<T, P>(weight + tile_at, d_o, kColumns, d_v + lane.warp * kStep * P);
        add_product<T, P>(d_score + tile_at, q, kColumns, d_k + lane.warp * kStep * P);
        __syncwarp();
      }
    }
    __syncthreads();
    if (j >= s.nk) continue;
    T* key =
        static_cast<T*>(p.d_k.data) + (s.k + j) * p.d_k.token_stride + at.head * p.d_k.head_stride;
    T* value =
        static_cast<T*>(p.d_v.data) + (s.k + j) * p.d_v.token_stride + at.head * p.d_v.head_stride;
    for (int64_t d = lane.half; d < p.head_dim; d += 2)
      key[d] = from_float<T>(d_k[lane.row * P + d]);
    for (int64_t d = lane.half; d < p.value_dim; d += 2)
      value[d] = from_float<T>(d_v[lane.row * P + d]);
  }
}

void backward(const Scores& a) {
  const AttentionProblem& p = a.p;
  with_shape(p, [&]<class T, int P>(T, std::integral_constant<int, P>) {
    using S = Tiles<P>;
    if (a.softmax && p.rows > 0)
      launch("attention delta", delta_kernel<T>,
             std::min<int64_t>(divide_up<int64_t>(p.heads * p.rows, 8), 1 << 16), 256, 0, p.stream,
             a);
    const int64_t q_tiles = divide_up<int64_t>(p.max_q, S::kRows);
    const int64_t q_tasks = q_tiles * p.heads * p.sequences;
    launch("attention d_q", d_query_kernel<T, P>, q_tasks, 2 * S::kRows, d_query_bytes<T, P>(),
           p.stream, a, q_tiles, q_tasks);
    const int64_t k_tiles = divide_up<int64_t>(p.max_k, S::kKeys);
    const int64_t k_tasks = k_tiles * p.kv_heads * p.sequences;
    launch("attention d_k", d_key_kernel<T, P>, k_tasks, 2 * S::kKeys, d_key_bytes<T, P>(),
           p.stream, a, k_tiles, k_tasks);
  });
  if (p.bias.any()) bias_gradient(a);
}

}  // namespace
}  // namespace portable

void jagged_attention_backward_cuda(const JaggedAttention& p) {
  portable::backward(portable::scores_of(p));
}
void gdpa_backward_cuda(const Gdpa& p) { portable::backward(portable::scores_of(p)); }

}  // namespace tautline::kernels
