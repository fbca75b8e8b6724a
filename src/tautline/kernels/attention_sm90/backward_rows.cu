// The pass before backward.cuh: lse / ln 2 and -delta, delta = sum_j P_j dP_j, of each row, and
// d_q = 0 where no key is seen. delta = d_o . o is cheaper, but o has 16 bits: where a row sees few
// keys, dP - delta cancels and o's rounding would be all that is left, so there delta is summed.
#include "tautline/kernels/attention_few_keys.cuh"
#include "tautline/kernels/attention_sm90/backward_workspace.h"
#include "tautline/kernels/launch.cuh"
#include "tautline/kernels/vector.cuh"

namespace tautline::kernels::sm90 {
namespace {

constexpr float kLog2E = 1.44269504089f;

template <class T>
__device__ __forceinline__ T* piece_of(const HeadsView& x, int64_t token, int head, int piece) {
  return static_cast<T*>(x.data) + token * x.token_stride + head * x.head_stride + 8 * piece;
}

/// Eight numbers of a row; zeros beyond its width.
template <class T>
__device__ __forceinline__ void load_piece(const HeadsView& x, int64_t token, int head, int piece,
                                           int width, float (&out)[8]) {
  if (8 * piece < width) return load_vector<8>(piece_of<T>(x, token, head, piece), out);
#pragma unroll
  for (float& f : out) f = 0;
}

template <int kLanes>
__device__ __forceinline__ float dot(const float (&a)[8], const float (&b)[8], unsigned lanes) {
  float sum = 0;
#pragma unroll
  for (int c = 0; c < 8; ++c) sum = fmaf(a[c], b[c], sum);
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(lanes, sum, offset);
  return sum;
}

/// What a CTA works on: a tile of M queries of a sequence.
struct Tile {
  int64_t row, token;  // first row of o, first query token
  int64_t first, nq, k, nk;
};

/// Tile `x` of the batch, numbered as in the kernel; nq = 0: there is none.
template <int kM>
__device__ __forceinline__ Tile tile_at(const AttentionSm90Backward& p, int64_t x) {
  const auto start = [&](int64_t b) { return p.q_offsets ? p.q_offsets[b] : b * p.max_q; };
  int64_t low = 0, high = p.sequences - 1;  // the last sequence whose tiles start at x or before
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (start(middle) / kM + middle <= x)
      low = middle;
    else
      high = middle - 1;
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

/// One CTA a tile of kM queries; kColumns / 8 threads a row, 16 bytes each.
template <class T, int kColumns, int kM>
__global__ void __launch_bounds__(256)
    rows_kernel(const __grid_constant__ AttentionSm90Backward p, float* out) {
  constexpr int kLanes = kColumns / 8;
  if (p.count[1] != p.whole) __trap();  // made for heads of another width: turns would never come
  const Tile t = tile_at<kM>(p, blockIdx.x);
  if (t.nq == 0) return;
  const int64_t end = min(t.first + kM, t.nq);
  const bool blind = visible_keys(p.window, end - 1, t.nq, t.nk).last == 0;
  if (!p.softmax && !blind) return;
  const int piece = threadIdx.x % kLanes;
  const unsigned lanes = ((1ull << kLanes) - 1) << (threadIdx.x % kWarp / kLanes * kLanes);
  for (int i = threadIdx.x / kLanes; i < kM * p.heads; i += 256 / kLanes) {
    const int row = i / p.heads, head = i % p.heads;
    const int64_t at = t.first + row;
    const bool inside = at < t.nq;
    if (blind && inside && 8 * piece < p.head_dim) {
      constexpr float kZeros[8] = {};
      if (p.q_offsets) {
        store_vector<8>(piece_of<T>(p.d_q, t.row + at, head, piece), kZeros);
      } else {
        float* zeros = piece_of<float>(p.d_q, t.row + at, head, piece);
        for (int c = 0; c < 8; ++c) zeros[c] = 0;
      }
    }
    if (!p.softmax) continue;
    float delta = 0, lse = INFINITY;
    if (inside) {
      lse = p.lse[head * p.rows + t.row + at];
      if (lse == -INFINITY) lse = INFINITY;
      float d_o[8], other[8];
      load_piece<T>(p.d_o, t.row + at, head, piece, p.value_dim, d_o);
      const KeyRange keys = visible_keys(p.window, at, t.nq, t.nk);
      if (few_keys(keys)) {
        const int kv_head = head / (p.heads / p.kv_heads);
        float q[8];
        load_piece<T>(p.q, t.token + at, head, piece, p.head_dim, q);
        for (int64_t j = t.k + keys.first; j < t.k + keys.last; ++j) {
          load_piece<T>(p.k, j, kv_head, piece, p.head_dim, other);
          const float score = dot<kLanes>(q, other, lanes);
          load_piece<T>(p.v, j, kv_head, piece, p.value_dim, other);
          const float d_weight = dot<kLanes>(d_o, other, lanes);
          delta = fmaf(exp2f(fmaf(score, p.scale, -lse) * kLog2E), d_weight, delta);
        }
      } else {
        load_piece<T>(p.o, t.row + at, head, piece, p.value_dim, other);
        delta = dot<kLanes>(d_o, other, lanes);
      }
    }
    if (piece == 0) {
      float* to = out + (blockIdx.x * int64_t{p.heads} + head) * 4 * kM + row / 2 * 4 + row % 2;
      to[0] = to[2] = -lse / p.scale;
      to[2 * kM] = to[2 * kM + 2] = -delta;
    }
  }
}

}  // namespace

void backward_rows(const AttentionSm90Backward& p, float* rows) {
  if (p.rows == 0) return;
  const auto run = [&](auto* kernel) {
    kernel<<<static_cast<unsigned>(query_tiles(p, tile_of(p))), 256, 0, stream_of(p.stream)>>>(
        p, rows);
    check_launch("attention backward, rows");
  };
  const bool half = p.element == Element::kFloat16;
  if (columns_of(p) == 64)
    run(half ? rows_kernel<Float16, 64, 128> : rows_kernel<BFloat16, 64, 128>);
  else
    run(half ? rows_kernel<Float16, 128, 64> : rows_kernel<BFloat16, 128, 64>);
}

}  // namespace tautline::kernels::sm90
