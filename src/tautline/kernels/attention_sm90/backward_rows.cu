// The pass before backward.cuh and backward_few.cuh: -lse / scale and -delta, delta = sum_j P_j dP_j, of
// each row in terms (backward_terms.h), and d_q = 0 where no key is seen, unless d_q is summed over
// sequences. delta = d_o . o is cheaper, but o has 16 bits: where a row sees few keys, dP - delta cancels
// and o's rounding would be all that is left, so there delta is summed. Bound by memory: 4 D bytes a row
// and head are read.
#include <climits>

#include "tautline/kernels/attention_few_keys.cuh"
#include "tautline/kernels/attention_sm90/backward_terms.h"
#include "tautline/kernels/attention_sm90/backward_workspace.h"
#include "tautline/kernels/launch.cuh"
#include "tautline/kernels/mma.cuh"
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

/// delta = sum_j P_j dP_j of those of the tile's rows [first, first + 16) that `few` says, of one head, by a
/// warp on tensor cores: 16 rows and 16 keys at a time. A lane's 16 bytes of a row are the operands of
/// two products: which columns they stand for does not matter where both sides agree.
template <class T, int kColumns>
__device__ __forceinline__ void sum_keys(const AttentionSm90Backward& p, const Tile& t, int first,
                                         uint32_t few, int head, float* delta) {
  const int lane = threadIdx.x % kWarp, quad = lane % 4, kv_head = head / (p.heads / p.kv_heads);
  int64_t at[2];  // rows of a lane: lane / 4 and that plus 8
  int from[2], to[2], least = INT_MAX, most = 0;
  float lse[2], sum[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = lane / 4 + 8 * h;
    const bool mine = few >> row & 1;
    at[h] = min(t.first + first + row, t.nq - 1);
    const KeyRange keys = visible_keys(p.window, at[h], t.nq, t.nk);
    from[h] = static_cast<int>(keys.first), to[h] = mine ? static_cast<int>(keys.last) : 0;
    if (from[h] < to[h]) least = min(least, from[h]), most = max(most, to[h]);
    lse[h] = p.lse[head * p.rows + t.row + at[h]];
  }
  least = __reduce_min_sync(0xffffffffu, least), most = __reduce_max_sync(0xffffffffu, most);
  for (int j = least; j < most; j += 16) {
    float s[2][4] = {}, d_p[2][4] = {};
#pragma unroll 1
    for (int c = 0; c < kColumns / 32; ++c) {
      const int piece = 4 * c + quad;
      const auto multiply = [&](float(&sums)[2][4], const HeadsView& rows, int64_t token,
                                const HeadsView& keys, int width) {
        uint4 a[2], b[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) a[h] = load_piece<T>(rows, token + at[h], head, piece, width);
#pragma unroll
        for (int u = 0; u < 2; ++u)
          b[u] = load_piece<T>(keys, t.k + min(int64_t{j + 8 * u + lane / 4}, t.nk - 1), kv_head,
                               piece, width);
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          mma::multiply<T>(sums[u], {a[0].x, a[1].x, a[0].y, a[1].y}, b[u].x, b[u].y);
          mma::multiply<T>(sums[u], {a[0].z, a[1].z, a[0].w, a[1].w}, b[u].z, b[u].w);
        }
      };
      multiply(s, p.q, t.token, p.k, p.head_dim);
      multiply(d_p, p.d_o, t.row, p.v, p.value_dim);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int u = i / 4, h = i / 2 % 2, key = j + 8 * u + 2 * quad + i % 2;
      if (key >= from[h] && key < to[h])
        sum[h] = fmaf(exp2f(fmaf(s[u][i % 4], p.scale, -lse[h]) * kLog2E), d_p[u][i % 4], sum[h]);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
    sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
    const int row = lane / 4 + 8 * h;
    if (quad == 0 && (few >> row & 1)) delta[first + row] = sum[h];
  }
}

/// One CTA a tile of kM queries; kColumns / 8 threads a row, 16 bytes each.
template <class T, int kColumns, int kM>
__global__ void __launch_bounds__(kThreads, 4)
    rows_kernel(const __grid_constant__ AttentionSm90Backward p, T* out) {
  constexpr int kLanes = kColumns / 8, kGroups = kThreads / kLanes, kHeads = 8, kUnroll = 4;
  if (p.count[1] != p.whole) __trap();  // made for heads of another width: turns would never come
  const Tile t = tile_at<kM>(p, blockIdx.x);
  if (t.nq == 0) return;
  if (t.nq > p.max_q || t.nk > p.max_k) __trap();  // the workspace is for shorter ones
  const int rows = static_cast<int>(min(int64_t{kM}, t.nq - t.first));
  if (p.d_q.data && visible_keys(p.window, t.first + rows - 1, t.nq, t.nk).last == 0)
    clear_d_q<T>(p, t, rows);
  if (!p.softmax) return;
  __shared__ float delta[kHeads][kM];
  __shared__ uint32_t few_rows[kM / kWarp];
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x < kM) {
    const int64_t row = t.first + threadIdx.x;
    const bool few = threadIdx.x < rows && few_keys(visible_keys(p.window, row, t.nq, t.nk));
    const uint32_t votes = __ballot_sync(0xffffffffu, few);
    if (threadIdx.x % kWarp == 0) few_rows[warp] = votes;
  }
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
    for (int i = warp; i < kM / 16 * heads; i += kThreads / kWarp) {
      const int first = i / heads * 16, head = i % heads;
      const uint32_t few = few_rows[first / kWarp] >> (first % kWarp) & 0xffff;
      if (few != 0) sum_keys<T, kColumns>(p, t, first, few, h0 + head, delta[head]);
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
  AttentionSm90Backward problem = p;
  if (!p.q_offsets && has_few_queries(p))
    problem.d_q.data = nullptr;  // no gradient of a sequence's own
  const auto run = [&]<class T>(T* to) {
    auto* kernel = columns_of(p) == 128 ? rows_kernel<T, 128, 64>
                   : tile_of(p) == 128  ? rows_kernel<T, 64, 128>
                                        : rows_kernel<T, 64, 64>;
    kernel<<<static_cast<unsigned>(query_tiles(p, tile_of(p))), kThreads, 0, stream_of(p.stream)>>>(
        problem, to);
    check_launch("attention backward, rows");
  };
  if (p.element == Element::kFloat16)
    run(static_cast<Float16*>(terms));
  else
    run(static_cast<BFloat16*>(terms));
}

}  // namespace tautline::kernels::sm90
