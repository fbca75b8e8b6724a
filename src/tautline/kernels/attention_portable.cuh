// The plain CUDA kernels of attention.h and gdpa.h, for every card from sm_80: what the fast ones do
// not cover falls back to these. Tensor cores through wmma (which compiles to mma.sync), everything
// between two products in shared memory, no pipelines.
//
// A CTA owns what it writes, so there are no atomics and results are the same bits in every run:
//   forward     one tile of queries of a head: all its keys, online softmax
//   d_q         one tile of queries of a head: the scores again, d_q
//   d_k, d_v    one tile of keys of a key/value head: all query heads that share it, the scores
//               once more (7 products instead of 5, for no buffer and no reduction)
//   bias        one head of one sequence: all its tiles in order
// A warp owns 16 rows of the CTA's tile, so between its products a warp waits for itself alone.
//
// T element type (bf16, fp16), P padded head dimension (the larger of D and E, rounded up).
// Precision: FP32 scores and sums; weights and d_score are rounded to T for the second product.
#pragma once

#include <cmath>
#include <mma.h>

#include "tautline/kernels/attention.h"
#include "tautline/kernels/gdpa.h"
#include "tautline/kernels/launch.cuh"

namespace tautline::kernels::portable {

/// Both kinds of attention, told apart at run time; by value to the kernels.
struct Scores {
  AttentionProblem p;
  bool softmax = true;
  ScoreActivation activation = ScoreActivation::kIdentity;
  float scale = 1.0f, beta = 1.0f;  // beta = 1 for softmax
  float* lse = nullptr;             // [H, rows], softmax
  float* delta = nullptr;           // [H, rows]: d_o . o, softmax's backward
};

template <class T>
struct Native;
template <>
struct Native<BFloat16> {
  using type = __nv_bfloat16;
};
template <>
struct Native<Float16> {
  using type = __half;
};

constexpr int kStep = 16;  // rows, columns and depth of one wmma product

template <int P>
struct Tiles {
  static constexpr int kRows = P <= 128 ? 64 : 32;                 // queries of forward and d_q
  static constexpr int kOther = P <= 64 ? 32 : 16;                 // keys of forward and d_q
  static constexpr int kKeys = P <= 64 ? 64 : P <= 128 ? 32 : 16;  // keys of d_k, d_v
  static constexpr int kQueries = P <= 128 ? 32 : 16;              // queries of d_k, d_v
};

struct Sequence {
  int64_t q, row, k, nq, nk;  // first query token, row of o and key token; lengths
};
__device__ inline Sequence sequence_of(const AttentionProblem& p, int64_t b) {
  const int64_t k = p.k_offsets[b], nk = p.k_offsets[b + 1] - k;
  if (p.q_offsets == nullptr) return {0, b * p.max_q, k, p.max_q, nk};
  return {p.q_offsets[b], p.q_offsets[b], k, p.q_offsets[b + 1] - p.q_offsets[b], nk};
}

template <class T>
__device__ const T* row_of(const HeadsView& view, int64_t token, int64_t head) {
  return static_cast<const T*>(view.data) + token * view.token_stride + head * view.head_stride;
}

/// Rows [first, last) of a head, `rows` at most, into [rows][P]; zeros behind and below. The zeros
/// stand for masks of keys: they are counted out where softmax sums.
template <class T, int P>
__device__ void load_tile(const HeadsView& view, int64_t token, int64_t head, int64_t count,
                          int rows, int64_t dim, T* tile) {
  for (int at = threadIdx.x; at < rows * P; at += blockDim.x) {
    const int r = at / P, d = at % P;
    tile[at] = r < count && d < dim ? row_of<T>(view, token + r, head)[d] : from_float<T>(0.0f);
  }
}

/// out[16][columns] = a[16][P] b[columns][P]^T, by one warp; leading dimension of out: `columns`.
template <class T, int P>
__device__ void product_transposed(const T* a, const T* b, int columns, float* out) {
  namespace wmma = nvcuda::wmma;
  using N = typename Native<T>::type;
  for (int c = 0; c < columns; c += kStep) {
    wmma::fragment<wmma::accumulator, kStep, kStep, kStep, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int d = 0; d < P; d += kStep) {
      wmma::fragment<wmma::matrix_a, kStep, kStep, kStep, N, wmma::row_major> left;
      wmma::fragment<wmma::matrix_b, kStep, kStep, kStep, N, wmma::col_major> right;
      wmma::load_matrix_sync(left, reinterpret_cast<const N*>(a + d), P);
      wmma::load_matrix_sync(right, reinterpret_cast<const N*>(b + c * P + d), P);
      wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(out + c, sum, columns, wmma::mem_row_major);
  }
}

/// out[16][P] += w[16][depth] b[depth][P], by one warp.
template <class T, int P>
__device__ void add_product(const T* w, const T* b, int depth, float* out) {
  namespace wmma = nvcuda::wmma;
  using N = typename Native<T>::type;
  for (int d = 0; d < P; d += kStep) {
    wmma::fragment<wmma::accumulator, kStep, kStep, kStep, float> sum;
    wmma::load_matrix_sync(sum, out + d, P, wmma::mem_row_major);
    for (int j = 0; j < depth; j += kStep) {
      wmma::fragment<wmma::matrix_a, kStep, kStep, kStep, N, wmma::row_major> left;
      wmma::fragment<wmma::matrix_b, kStep, kStep, kStep, N, wmma::row_major> right;
      wmma::load_matrix_sync(left, reinterpret_cast<const N*>(w + j), depth);
      wmma::load_matrix_sync(right, reinterpret_cast<const N*>(b + j * P + d), P);
      wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(out + d, sum, P, wmma::mem_row_major);
  }
}

__device__ inline float bias_of(const AttentionProblem& p, const Sequence& s, int64_t head,
                                int64_t i, int64_t j) {
  const AttentionBias& b = p.bias;
  float total = 0.0f;
  if (b.position) {
    const int64_t far = b.distances - 1;
    total += b.position[head * b.position_stride + far + clamp_to(i + s.nk - s.nq - j, -far, far)];
  }
  if (b.time)
    total += b.time[head * b.time_stride + time_bucket(b.q_time[s.q + i] - b.k_time[s.k + j],
                                                       static_cast<int32_t>(b.time_buckets))];
  return total;
}

__device__ inline bool sees(const AttentionProblem& p, const Sequence& s, int64_t i, int64_t j) {
  if (i >= s.nq || j >= s.nk) return false;
  const KeyRange keys = visible_keys(p.window, i, s.nq, s.nk);
  return j >= keys.first && j < keys.last;
}

/// f(x) and f'(x).
struct Activated {
  float value, slope;
};
__device__ inline Activated activate(ScoreActivation f, float x) {
  switch (f) {
    case ScoreActivation::kIdentity:
      return {x, 1.0f};
    case ScoreActivation::kRelu:
      return {fmaxf(x, 0.0f), x > 0.0f ? 1.0f : 0.0f};
    case ScoreActivation::kSquaredRelu: {
      const float r = fmaxf(x, 0.0f);
      return {r * r, r + r};
    }
    case ScoreActivation::kSilu: {
      const float s = 1.0f / (1.0f + __expf(-x)), y = x * s;
      return {y, s + y * (1.0f - s)};
    }
    case ScoreActivation::kGelu: {
      const float cdf = 0.5f * erfcf(-0.70710678f * x);
      return {x * cdf, cdf + x * __expf(-0.5f * x * x) * 0.39894228f};
    }
    case ScoreActivation::kGeluTanh: {
      const float twice = 1.5957691216f, square = x * x;  // 2 sqrt(2 / pi)
      const float s = 1.0f / (1.0f + __expf(-twice * x * (1.0f + 0.044715f * square))), y = x * s;
      return {y, s + y * (1.0f - s) * (twice * (1.0f + 0.134145f * square))};
    }
    case ScoreActivation::kLeakyRelu:
      return {x > 0.0f ? x : 0.01f * x, x > 0.0f ? 1.0f : 0.01f};
    case ScoreActivation::kHardSwish:
      if (x <= -3.0f) return {0.0f, 0.0f};
      if (x >= 3.0f) return {x, 1.0f};
      return {x * (x + 3.0f) * (1.0f / 6), x * (1.0f / 3) + 0.5f};
  }
  return {};
}

/// A pair's weight and d_score from its product q . k and its d_o . v; zeros where j is not seen.
struct Pair {
  float weight, d_score;
};
__device__ inline Pair pair_of(const Scores& a, const Sequence& s, int64_t head, int64_t i,
                               int64_t j, float product, float d_weight) {
  if (!sees(a.p, s, i, j)) return {0.0f, 0.0f};
  const float score = product * a.scale + bias_of(a.p, s, head, i, j);
  if (!a.softmax) {
    const Activated f = activate(a.activation, score);
    return {a.beta * f.value, a.beta * f.slope * d_weight};
  }
  const int64_t at = head * a.p.rows + s.row + i;
  const float weight = __expf(score - a.lse[at]);
  return {weight, weight * (d_weight - a.delta[at])};
}

/// First and last tile of keys that queries [begin, end) see.
__device__ inline KeyRange key_tiles(const AttentionProblem& p, const Sequence& s, int64_t begin,
                                     int64_t end, int64_t tile) {
  const int64_t first = visible_keys(p.window, begin, s.nq, s.nk).first;
  const int64_t last = visible_keys(p.window, end - 1, s.nq, s.nk).last;
  return last <= first ? KeyRange{0, 0} : KeyRange{first / tile, (last - 1) / tile + 1};
}
/// First and last tile of queries that see keys [begin, end).
__device__ inline KeyRange query_tiles(const AttentionProblem& p, const Sequence& s, int64_t begin,
                                       int64_t end, int64_t tile) {
  const int64_t shift = s.nk - s.nq;
  const int64_t first = p.window.right < 0 ? 0 : clamp_to(begin - p.window.right - shift, 0, s.nq);
  const int64_t last = p.window.left < 0 ? s.nq : clamp_to(end + p.window.left - shift, 0, s.nq);
  return last <= first ? KeyRange{0, 0} : KeyRange{first / tile, (last - 1) / tile + 1};
}

}  // namespace tautline::kernels::portable
