// The pass before backward.cuh: -lse / scale and -delta, delta = sum_j P_j dP_j, of each row in terms
// (backward_terms.h), and d_q = 0 where no key is seen. delta = d_o . o is cheaper, but o has 16 bits:
// where a row sees few keys, dP - delta cancels and o's rounding would be all that is left, so there
// delta is summed. Bound by memory: 4 D bytes a row and head are read.
#include "tautline/kernels/attention_few_keys.cuh"
#include "tautline/kernels/attention_sm90/backward_terms.h"
#include "tautline/kernels/attention_sm90/backward_workspace.h"
#include "tautline/kernels/launch.cuh"
#include "tautline/kernels/vector.cuh"

namespace tautline::kernels::sm90 {
namespace {

constexpr float kLog2E = 1.44269504089f;
constexpr int kThreads = 256;

template <class T>
__device__ __forceinline__ T* piece_of(const HeadsView& x, int64_t token, int head, int piece) {
  return static_cast<T*>(x.data) + token * x.token_stride + head * x.head_stride + 8 * piece;
}

/// Eight numbers of a row as they are; zeros beyond its width.
template <class T>
__device__ __forceinline__ uint4 load_piece(const HeadsView& x, int64_t token, int head, int piece,
                                            int width) {
  uint4 raw{};
  if (8 * piece < width) raw = *reinterpret_cast<const uint4*>(piece_of<T>(x, token, head, piece));
  return raw;
}

/// Of kLanes threads' pieces.
template <class T, int kLanes>
__device__ __forceinline__ float dot(const uint4& a, const uint4& b, unsigned lanes) {
  const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const auto part = [](uint32_t word) { return to_float(T{static_cast<uint16_t>(word)}); };
    sum = fmaf(part(x[c]), part(y[c]), sum);
    sum = fmaf(part(x[c] >> 16), part(y[c] >> 16), sum);
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(lanes, sum, offset);
  return sum;
}

/// Terms t of 16 bits with sum_i c_i t_i = x; infinity becomes the largest number, NaN stays.
template <class T>
__device__ __forceinline__ void split(float x, const float (&c)[3], float* t) {
  constexpr float kLargest = std::is_same_v<T, Float16> ? 65504.0f : 3.0e38f;
  if (x == x) x = fmaxf(-kLargest * c[0], fminf(x, kLargest * c[0]));
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    t[i] = to_float(from_float<T>(x / c[i]));
    x = fmaf(-c[i], t[i], x);
  }
}

/// What a CTA works on: a tile of M queries of a sequence.
struct Tile {
  int64_t row, token;  // first row of o, first query token
  int64_t first, nq, k, nk;
};

/// Tile `x` of the batch, numbered as in the kernel; nq = 0: there is none. A warp searches 32 wide,
/// as each look at the offsets takes as long as a row's work.
template <int kM>
__device__ __forceinline__ Tile tile_at(const AttentionSm90Backward& p, int64_t x) {
  const auto start = [&](int64_t b) { return p.q_offsets ? p.q_offsets[b] : b * p.max_q; };
  int64_t low = 0, count = p.sequences;  // the last of these whose tiles start at x or before
  while (count > 1) {
    const int64_t step = (count + kWarp - 1) / kWarp, i = threadIdx.x % kWarp * step;
    const bool before = i < count && start(low + i) / kM + low + i <= x;
    const int64_t skipped = (__popc(__ballot_sync(0xffffffffu, before)) - 1) * step;
    low += skipped;
    count = min(step, count - skipped);
  }
  Tile t;
  t.row = start(low);
  t.nq = start(low + 1) - t.row;
  t.first = (x - t.row / kM - low) * kM;
  if (t.first < 0 || t.first >= t.nq) t.nq = 0;
  t.token = p.q_offsets ? t.row : 0;
  t.k = p.k_offsets[low];
  t.nk = p.k_offsets[low + 1] - t.k;
  return t;
}

template <class T>
__device__ __forceinline__ void clear_d_q(const AttentionSm90Backward& p, const Tile& t, int rows) {
  const int pieces = p.head_dim / 8, in_row = pieces * p.heads;
  for (int i = threadIdx.x; i < rows * in_row; i += kThreads) {
    const int64_t row = t.row + t.first + i / in_row;
    const int head = i % in_row / pieces, piece = i % pieces;
    if (p.q_offsets) {
      store_vector<8>(piece_of<T>(p.d_q, row, head, piece), {});
    } else {
      float* zeros = piece_of<float>(p.d_q, row, head, piece);
      for (int c = 0; c < 8; ++c) zeros[c] = 0;
    }
  }
}

/// sum_j P_j dP_j of one row and head, by kLanes threads; four keys are asked for at a time.
template <class T, int kLanes>
__device__ __forceinline__ float sum_keys(const AttentionSm90Backward& p, const Tile& t, int64_t at,
                                          int head, int piece, unsigned lanes, KeyRange keys) {
  const int kv_head = head / (p.heads / p.kv_heads);
  const float lse = p.lse[head * p.rows + t.row + at];
  const uint4 q = load_piece<T>(p.q, t.token + at, head, piece, p.head_dim);
  const uint4 d_o = load_piece<T>(p.d_o, t.row + at, head, piece, p.value_dim);
  float delta = 0;
  for (int64_t j = keys.first; j < keys.last; j += 4) {
    uint4 k[4], v[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const int64_t key = t.k + min(j + u, keys.last - 1);
      k[u] = load_piece<T>(p.k, key, kv_head, piece, p.head_dim);
      v[u] = load_piece<T>(p.v, key, kv_head, piece, p.value_dim);
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const float score = dot<T, kLanes>(q, k[u], lanes);
      const float d_weight = dot<T, kLanes>(d_o, v[u], lanes);
      if (j + u < keys.last)
        delta = fmaf(exp2f(fmaf(score, p.scale, -lse) * kLog2E), d_weight, delta);
    }
  }
  return delta;
}

/// One CTA a tile of kM queries; kColumns / 8 threads a row, 16 bytes each.
template <class T, int kColumns, int kM>
__global__ void __launch_bounds__(kThreads, 4)
    rows_kernel(const __grid_constant__ AttentionSm90Backward p, T* out) {
  constexpr int kLanes = kColumns / 8, kGroups = kThreads / kLanes, kHeads = 8, kUnroll = 4;
  if (p.count[1] != p.whole) __trap();  // made for heads of another width: turns would never come
  const Tile t = tile_at<kM>(p, blockIdx.x);
  if (t.nq == 0) return;
  const int rows = static_cast<int>(min(int64_t{kM}, t.nq - t.first));
  if (visible_keys(p.window, t.first + rows - 1, t.nq, t.nk).last == 0) clear_d_q<T>(p, t, rows);
  if (!p.softmax) return;
  __shared__ float delta[kHeads][kM];
  __shared__ int few[kM], few_count;
  if (threadIdx.x == 0) few_count = 0;
  __syncthreads();
  if (threadIdx.x < rows && few_keys(visible_keys(p.window, t.first + threadIdx.x, t.nq, t.nk)))
    few[atomicAdd(&few_count, 1)] = threadIdx.x;
  const int piece = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  const unsigned lanes = ((1ull << kLanes) - 1) << (threadIdx.x % kWarp / kLanes * kLanes);
  const bool inside = 8 * piece < p.value_dim;
  for (int h0 = 0; h0 < p.heads; h0 += kHeads) {
    const int heads = min(kHeads, p.heads - h0);
    for (int row = group; row < rows; row += kGroups) {
      const T* d_o_head = piece_of<T>(p.d_o, t.row + t.first + row, h0, piece);
      const T* o_head = piece_of<T>(p.o, t.row + t.first + row, h0, piece);
      for (int head = 0; head < heads; head += kUnroll) {
        uint4 d_o[kUnroll]{}, o[kUnroll]{};
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          if (inside && head + u < heads) {
            d_o[u] = *reinterpret_cast<const uint4*>(d_o_head);
            o[u] = *reinterpret_cast<const uint4*>(o_head);
          }
          d_o_head += p.d_o.head_stride;
          o_head += p.o.head_stride;
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const float sum = dot<T, kLanes>(d_o[u], o[u], lanes);
          if (piece == 0 && head + u < heads) delta[head + u][row] = sum;
        }
      }
    }
    __syncthreads();
    for (int i = group; i < few_count * heads; i += kGroups) {
      const int head = i % heads, row = few[i / heads];
      const int64_t x = t.first + row;
      const float sum = sum_keys<T, kLanes>(p, t, x, h0 + head, piece, lanes,
                                            visible_keys(p.window, x, t.nq, t.nk));
      if (piece == 0) delta[head][row] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < heads * kM; i += kThreads) {
      const int row = i % kM, head = i / kM;
      float lse = -INFINITY;
      if (row < rows) lse = p.lse[(h0 + head) * p.rows + t.row + t.first + row];
      if (lse == -INFINITY) lse = INFINITY;
      const TermScales<std::is_same_v<T, Float16>> c;
      float terms[kRowTerms] = {};
      split<T>(-lse / p.scale, c.lse, terms);
      split<T>(row < rows ? -delta[head][row] : 0.0f, c.delta, terms + 3);
      store_vector<kRowTerms>(
          out + ((blockIdx.x * int64_t{p.heads} + h0 + head) * kM + row) * kRowTerms, terms);
    }
    __syncthreads();
  }
}

}  // namespace

void backward_rows(const AttentionSm90Backward& p, void* terms) {
  if (p.rows == 0) return;
  const auto run = [&]<class T>(T* to) {
    auto* kernel = columns_of(p) == 64 ? rows_kernel<T, 64, 128> : rows_kernel<T, 128, 64>;
    kernel<<<static_cast<unsigned>(query_tiles(p, tile_of(p))), kThreads, 0, stream_of(p.stream)>>>(
        p, to);
    check_launch("attention backward, rows");
  };
  if (p.element == Element::kFloat16)
    run(static_cast<Float16*>(terms));
  else
    run(static_cast<BFloat16*>(terms));
}

}  // namespace tautline::kernels::sm90
