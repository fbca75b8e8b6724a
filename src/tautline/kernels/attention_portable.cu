#include "tautline/kernels/attention_portable.cuh"

namespace tautline::kernels {
namespace portable {
namespace {

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
__device__ Place place_of(int64_t task, int64_t tiles, int64_t heads) {
  return {task % tiles, task / tiles % heads, task / tiles / heads};
}

/// The row of a warp's 16 that a lane works on, and its half of the columns.
struct Lane {
  int warp = threadIdx.x / kWarp;
  int row = warp * kStep + threadIdx.x % kWarp / 2;
  int half = threadIdx.x % 2;
};
__device__ float pair_sum(float x) { return x + __shfl_xor_sync(0xffffffffu, x, 1); }
__device__ float pair_max(float x) { return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1)); }

template <class T, int P>
constexpr size_t forward_bytes() {
  using S = Tiles<P>;
  return (S::kRows * P + 2 * S::kOther * P + S::kRows * S::kOther) * sizeof(T) +
         (S::kRows * S::kOther + S::kRows * P) * sizeof(float);
}

template <class T, int P>
__global__ void __launch_bounds__(2 * Tiles<P>::kRows)
    forward_kernel(const Scores a, int64_t tiles, int64_t tasks) {
  using S = Tiles<P>;
  constexpr int kColumns = S::kOther, kHalf = kColumns / 2;
  Shared shared{shared_memory};
  T* q = shared.take<T>(S::kRows * P);
  T* k = shared.take<T>(kColumns * P);
  T* v = shared.take<T>(kColumns * P);
  T* weight = shared.take<T>(S::kRows * kColumns);
  float* score = shared.take<float>(S::kRows * kColumns);
  float* o = shared.take<float>(S::kRows * P);
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
    for (int x = threadIdx.x; x < S::kRows * P; x += blockDim.x) o[x] = 0.0f;
    float max = -INFINITY, sum = 0.0f;  // sum: of this lane's columns
    const KeyRange range = key_tiles(p, s, begin, begin + count, kColumns);
    for (int64_t tile = range.first; tile < range.last; ++tile) {
      const int64_t first = tile * kColumns, keys = s.nk - first;
      __syncthreads();
      load_tile<T, P>(p.k, s.k + first, kv_head, keys, kColumns, p.head_dim, k);
      load_tile<T, P>(p.v, s.k + first, kv_head, keys, kColumns, p.value_dim, v);
      __syncthreads();
      product_transposed<T, P>(q + lane.warp * kStep * P, k, kColumns,
                               score + lane.warp * kStep * kColumns);
      __syncwarp();
      float* line = score + lane.row * kColumns + lane.half * kHalf;
      T* out = weight + lane.row * kColumns + lane.half * kHalf;
      float top = -INFINITY;
      for (int c = 0; c < kHalf; ++c) {
        const int64_t j = first + lane.half * kHalf + c;
        const bool seen = sees(p, s, i, j);
        const float x = seen ? line[c] * a.scale + bias_of(p, s, at.head, i, j) : -INFINITY;
        line[c] = x;
        top = fmaxf(top, x);
        if (!a.softmax) out[c] = from_float<T>(seen ? activate(a.activation, x).value : 0.0f);
      }
      if (a.softmax) {
        const float new_max = fmaxf(max, pair_max(top));
        const bool nothing = new_max == -INFINITY;
        const float shrink = max == -INFINITY ? 1.0f : __expf(max - new_max);
        sum *= shrink;
        for (int c = 0; c < kHalf; ++c) {
          const float e = nothing ? 0.0f : __expf(line[c] - new_max);
          sum += e;
          out[c] = from_float<T>(e);
        }
        if (shrink != 1.0f)
          for (int d = lane.half; d < P; d += 2) o[lane.row * P + d] *= shrink;
        max = new_max;
      }
      __syncwarp();
      add_product<T, P>(weight + lane.warp * kStep * kColumns, v, kColumns,
                        o + lane.warp * kStep * P);
      __syncwarp();
    }
    __syncthreads();
    sum = pair_sum(sum);
    if (i >= s.nq) continue;
    const float factor = !a.softmax ? a.beta : sum > 0.0f ? 1.0f / sum : 0.0f;
    T* row = static_cast<T*>(p.o.data) + (s.row + i) * p.o.token_stride + at.head * p.o.head_stride;
    for (int64_t d = lane.half; d < p.value_dim; d += 2)
      row[d] = from_float<T>(o[lane.row * P + d] * factor);
    if (a.softmax && lane.half == 0)
      a.lse[at.head * p.rows + s.row + i] = sum > 0.0f ? max + logf(sum) : -INFINITY;
  }
}

/// delta[h][row] = d_o . o, a warp each.
template <class T>
__global__ void delta_kernel(const Scores a) {
  const AttentionProblem& p = a.p;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / kWarp);
  int64_t at = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  for (; at < p.heads * p.rows; at += warps) {
    const int64_t head = at / p.rows, row = at % p.rows;
    float sum = 0.0f;
    for (int64_t d = threadIdx.x % kWarp; d < p.value_dim; d += kWarp)
      sum += to_float(row_of<T>(p.d_o, row, head)[d]) * to_float(row_of<T>(p.o, row, head)[d]);
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
      sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % kWarp == 0) a.delta[at] = sum;
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

template <class T, int P>
constexpr size_t d_bias_bytes() {
  using S = Tiles<P>;
  return (2 * S::kRows * P + 2 * S::kOther * P) * sizeof(T) +
         3 * S::kRows * S::kOther * sizeof(float);
}

/// One head of one sequence: its partial sums of both tables. The CTA adds tile after tile to its
/// own stretch of memory, one thread for each distance and for each bucket.
template <class T, int P>
__global__ void __launch_bounds__(2 * Tiles<P>::kRows) d_bias_kernel(const Scores a) {
  using S = Tiles<P>;
  constexpr int kColumns = S::kOther, kHalf = kColumns / 2;
  Shared shared{shared_memory};
  T* q = shared.take<T>(S::kRows * P);
  T* d_o = shared.take<T>(S::kRows * P);
  T* k = shared.take<T>(kColumns * P);
  T* v = shared.take<T>(kColumns * P);
  float* score = shared.take<float>(S::kRows * kColumns);
  float* product = shared.take<float>(S::kRows * kColumns);
  int32_t* bucket = shared.take<int32_t>(S::kRows * kColumns);
  const AttentionProblem& p = a.p;
  const AttentionBias& b = p.bias;
  const Lane lane;
  for (int64_t task = blockIdx.x; task < p.sequences * p.heads; task += gridDim.x) {
    const int64_t head = task % p.heads, kv_head = head / (p.heads / p.kv_heads);
    const Sequence s = sequence_of(p, task / p.heads);
    float* position = b.position_partial + head * (p.rows + p.k_tokens) + s.row + s.k;
    float* time = b.time_partial + (head * p.sequences + task / p.heads) * b.time_buckets;
    if (b.position)
      for (int64_t u = threadIdx.x; u < s.nq + s.nk; u += blockDim.x) position[u] = 0.0f;
    if (b.time)
      for (int64_t n = threadIdx.x; n < b.time_buckets; n += blockDim.x) time[n] = 0.0f;
    for (int64_t begin = 0; begin < s.nq; begin += S::kRows) {
      const int64_t count = min(static_cast<int64_t>(S::kRows), s.nq - begin);
      __syncthreads();
      load_tile<T, P>(p.q, s.q + begin, head, count, S::kRows, p.head_dim, q);
      load_tile<T, P>(p.d_o, s.row + begin, head, count, S::kRows, p.value_dim, d_o);
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
          const int64_t i = begin + lane.row, j = first + c;
          score[x] = pair_of(a, s, head, i, j, score[x], product[x]).d_score;
          if (b.time && i < s.nq && j < s.nk)
            bucket[x] = time_bucket(b.q_time[s.q + i] - b.k_time[s.k + j],
                                    static_cast<int32_t>(b.time_buckets));
          else
            bucket[x] = -1;
        }
        __syncthreads();
        if (b.position)
          for (int x = threadIdx.x; x < S::kRows + kColumns - 1; x += blockDim.x) {
            // Pairs with c - row = x - (kRows - 1); entry nq - 1 + j - i.
            const int64_t u = s.nq - 1 + first - begin + x - (S::kRows - 1);
            float sum = 0.0f;
            for (int r = 0; r < S::kRows; ++r) {
              const int c = r + x - (S::kRows - 1);
              if (c >= 0 && c < kColumns) sum += score[r * kColumns + c];
            }
            if (u >= 0 && u < s.nq + s.nk - 1) position[u] += sum;
          }
        if (b.time)
          for (int64_t n = threadIdx.x; n < b.time_buckets; n += blockDim.x) {
            float sum = 0.0f;
            for (int x = 0; x < S::kRows * kColumns; ++x) sum += bucket[x] == n ? score[x] : 0.0f;
            time[n] += sum;
          }
      }
    }
    __syncthreads();
  }
}

/// One entry of a table: its partial sums in the order of sequences, then heads.
__global__ void bias_finish_kernel(const AttentionProblem p) {
  const AttentionBias& b = p.bias;
  const int64_t width = b.position ? 2 * b.distances - 1 : 0, far = b.distances - 1;
  const int64_t positions = width * position_tables(p);
  const int64_t all = positions + (b.time ? b.time_buckets * time_tables(p) : 0);
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < all;
       at += threads) {
    const bool position = at < positions;
    const int64_t entries = position ? width : b.time_buckets;
    const int64_t table = (position ? at : at - positions) / entries;
    const int64_t entry = (position ? at : at - positions) % entries;
    const bool shared = (position ? b.position_stride : b.time_stride) == 0;
    const int64_t head_begin = shared ? 0 : table, head_end = shared ? p.heads : table + 1;
    double sum = 0;
    for (int64_t n = 0; n < p.sequences; ++n) {
      const Sequence s = sequence_of(p, n);
      if (s.nq == 0 || s.nk == 0) continue;
      for (int64_t head = head_begin; head < head_end; ++head) {
        if (!position) {
          sum += b.time_partial[(head * p.sequences + n) * entries + entry];
          continue;
        }
        const float* partial = b.position_partial + head * (p.rows + p.k_tokens) + s.row + s.k;
        // Entry u holds distance nk - 1 - u; the outermost entries hold all beyond.
        const int64_t distance = entry - far, u = s.nk - 1 - distance, last = s.nq + s.nk - 2;
        const int64_t from = distance == far ? 0 : u, to = distance == -far ? last : u;
        for (int64_t x = max(from, int64_t{0}); x <= min(to, last); ++x) sum += partial[x];
      }
    }
    (position ? b.d_position : b.d_time)[table * entries + entry] = static_cast<float>(sum);
  }
}

__global__ void broadcast_query_finish_kernel(const float* partial, int64_t sequences,
                                              int64_t columns, float* sum) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; c < columns;
       c += threads) {
    double total = 0;
    for (int64_t s = 0; s < sequences; ++s) total += partial[s * columns + c];
    sum[c] = static_cast<float>(total);
  }
}

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

void forward(const Scores& a) {
  with_shape(a.p, [&]<class T, int P>(T, std::integral_constant<int, P>) {
    using S = Tiles<P>;
    const int64_t tiles = divide_up<int64_t>(a.p.max_q, S::kRows);
    const int64_t tasks = tiles * a.p.heads * a.p.sequences;
    launch("attention forward", forward_kernel<T, P>, tasks, 2 * S::kRows, forward_bytes<T, P>(),
           a.p.stream, a, tiles, tasks);
  });
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
    if (p.bias.any())
      launch("attention d_bias", d_bias_kernel<T, P>, p.sequences * p.heads, 2 * S::kRows,
             d_bias_bytes<T, P>(), p.stream, a);
  });
}

Scores scores_of(const JaggedAttention& p) {
  return {p, true, ScoreActivation::kIdentity, static_cast<float>(p.scale), 1.0f, p.lse, p.delta};
}
Scores scores_of(const Gdpa& p) {
  return {p, false, p.activation, static_cast<float>(p.alpha), static_cast<float>(p.beta)};
}

}  // namespace
}  // namespace portable

void jagged_attention_forward_cuda(const JaggedAttention& p) {
  portable::forward(portable::scores_of(p));
}
void jagged_attention_backward_cuda(const JaggedAttention& p) {
  portable::backward(portable::scores_of(p));
}
void gdpa_forward_cuda(const Gdpa& p) { portable::forward(portable::scores_of(p)); }
void gdpa_backward_cuda(const Gdpa& p) { portable::backward(portable::scores_of(p)); }

void attention_bias_finish_cuda(const AttentionProblem& p) {
  if (!p.bias.any()) return;
  const int64_t entries =
      position_tables(p) * (2 * p.bias.distances - 1) + time_tables(p) * p.bias.time_buckets;
  portable::launch("attention bias", portable::bias_finish_kernel, divide_up<int64_t>(entries, 128),
                   128, 0, p.stream, p);
}

void broadcast_query_finish_cuda(const float* partial, int64_t sequences, int64_t columns,
                                 float* sum, void* stream) {
  portable::launch("broadcast query", portable::broadcast_query_finish_kernel,
                   divide_up<int64_t>(columns, 256), 256, 0, stream, partial, sequences, columns,
                   sum);
}

}  // namespace tautline::kernels
