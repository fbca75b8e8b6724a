// The gradients of the bias tables, and what sums over sequences.
#include "tautline/kernels/attention_portable_launch.cuh"

namespace tautline::kernels {
namespace portable {
namespace {

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

__global__ void broadcast_query_finish_kernel(const float* partial, int64_t parts, int64_t columns,
                                              float* sum) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; c < columns;
       c += threads) {
    double total = 0;
    for (int64_t s = 0; s < parts; ++s) total += partial[s * columns + c];
    sum[c] = static_cast<float>(total);
  }
}

}  // namespace

void bias_gradient(const Scores& a) {
  const AttentionProblem& p = a.p;
  with_shape(p, [&]<class T, int P>(T, std::integral_constant<int, P>) {
    launch("attention d_bias", d_bias_kernel<T, P>, p.sequences * p.heads, 2 * Tiles<P>::kRows,
           d_bias_bytes<T, P>(), p.stream, a);
  });
}

}  // namespace portable

void attention_bias_finish_cuda(const AttentionProblem& p) {
  if (!p.bias.any()) return;
  const int64_t entries =
      position_tables(p) * (2 * p.bias.distances - 1) + time_tables(p) * p.bias.time_buckets;
  portable::launch("attention bias", portable::bias_finish_kernel, divide_up<int64_t>(entries, 128),
                   128, 0, p.stream, p);
}

void broadcast_query_finish_cuda(const float* partial, int64_t parts, int64_t columns, float* sum,
                                 void* stream) {
  portable::launch("broadcast query", portable::broadcast_query_finish_kernel,
                   divide_up<int64_t>(columns, 256), 256, 0, stream, partial, parts, columns, sum);
}

}  // namespace tautline::kernels
