// attention.h on the CPU.
//
// A task is one head of one sequence. Its keys and values are packed once, transposed, so that a
// vector lane is a key: scores of kRows queries against kLanes keys are outer products held in
// registers. Queries go in groups of kRows; keys in tiles of kTile, whose scores stay in cache;
// between tiles the running maximum rescales (Milakov & Gimelshein 2018), so memory does not grow
// with length. The backward packs v transposed too and accumulates d_k and d_v of the task in FP32.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "tautline/kernels/attention.h"
#include "tautline/kernels/simd.h"

namespace tautline::kernels::TAUTLINE_ISA {
namespace {

constexpr int kRows = 4;
constexpr int64_t kTile = 512;  // keys; a multiple of kLanes
constexpr float kInfinity = std::numeric_limits<float>::infinity();

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// One growing block of aligned memory for all tasks of a call.
class Workspace {
 public:
  ~Workspace() { std::free(data_); }
  void reserve(int64_t floats_needed) {
    if (floats_needed > size_) {
      std::free(data_);
      size_ = floats_needed;
      data_ = static_cast<float*>(std::aligned_alloc(64, round_up(floats_needed * 4, 64)));
    }
    used_ = 0;
  }
  float* take(int64_t n) {
    float* result = data_ + used_;
    used_ += round_up(n, 16);
    return result;
  }

 private:
  float* data_ = nullptr;
  int64_t size_ = 0, used_ = 0;
};

/// One task: pointers at (first token, head), and packed copies.
struct Task {
  const float *q, *k, *v;
  int64_t nq, nk, dim, padded_dim, padded_nk;
  int64_t first_q, head;
  float *keys_t, *values, *values_t, *keys;  // [dim, padded_nk], [nk, padded_dim] and so on
  int64_t keys_of(int64_t i, bool causal) const {
    return causal ? std::clamp<int64_t>(i + 1 + nk - nq, 0, nk) : nk;
  }
};

const float* row(const HeadsView& view, int64_t token, int64_t head) {
  return floats(view.data) + token * view.token_stride + head * view.head_stride;
}
float* row_out(const HeadsView& view, int64_t token, int64_t head) {
  return floats(view.data) + token * view.token_stride + head * view.head_stride;
}

void pack_transposed(const float* in, int64_t stride, int64_t n, int64_t dim, int64_t padded_n,
                     float* out) {
  for (int64_t d = 0; d < dim; ++d) {
    float* line = out + d * padded_n;
    for (int64_t j = 0; j < n; ++j) line[j] = in[j * stride + d];
    std::fill_n(line + n, padded_n - n, 0.0f);
  }
}
void pack_rows(const float* in, int64_t stride, int64_t n, int64_t dim, int64_t padded_dim,
               float* out) {
  for (int64_t j = 0; j < n; ++j) {
    std::memcpy(out + j * padded_dim, in + j * stride, dim * sizeof(float));
    std::fill_n(out + j * padded_dim + dim, padded_dim - dim, 0.0f);
  }
}

Task make_task(const JaggedAttention& p, int64_t index, bool backward, Workspace& workspace) {
  const int64_t b = index / p.heads, head = index % p.heads;
  Task t{};
  t.first_q = p.q_offsets[b];
  t.head = head;
  t.nq = p.q_offsets[b + 1] - t.first_q;
  t.nk = p.k_offsets[b + 1] - p.k_offsets[b];
  t.dim = p.head_dim;
  t.padded_dim = round_up(t.dim, kLanes);
  t.padded_nk = round_up(t.nk, kLanes);
  t.q = row(p.q, t.first_q, head);
  t.k = row(p.k, p.k_offsets[b], head);
  t.v = row(p.v, p.k_offsets[b], head);
  const int64_t transposed = round_up(t.dim * t.padded_nk, 16);
  const int64_t rows = round_up(t.nk * t.padded_dim, 16);
  const int64_t group = kRows * (2 * kTile + 6 * t.padded_dim) + 64;
  workspace.reserve(backward ? 2 * transposed + 3 * rows + group : transposed + rows + group);
  t.keys_t = workspace.take(transposed);
  pack_transposed(t.k, p.k.token_stride, t.nk, t.dim, t.padded_nk, t.keys_t);
  if (backward) {
    t.values_t = workspace.take(transposed);
    pack_transposed(t.v, p.v.token_stride, t.nk, t.dim, t.padded_nk, t.values_t);
    t.keys = workspace.take(rows);
    pack_rows(t.k, p.k.token_stride, t.nk, t.dim, t.padded_dim, t.keys);
  } else {
    t.values = workspace.take(rows);
    pack_rows(t.v, p.v.token_stride, t.nk, t.dim, t.padded_dim, t.values);
  }
  return t;
}

/// out[r][j] = sum_d a[r][d] * b_t[d][first + j] for j < count (rounded up to lanes).
void outer_products(const float* const a[kRows], const float* b_t, int64_t padded_n, int64_t dim,
                    int64_t first, int64_t count, float* out) {
  for (int64_t j = 0; j < count; j += kLanes) {
    Vf sum[kRows] = {};
    for (int64_t d = 0; d < dim; ++d) {
      const Vf column = load(b_t + d * padded_n + first + j);
      for (int r = 0; r < kRows; ++r) sum[r] += a[r][d] * column;
    }
    for (int r = 0; r < kRows; ++r) store(out + r * kTile + j, sum[r]);
  }
}

/// out[r][:] += sum_j weight[r][j] * rows[j][:], kRows accumulators of one vector of channels.
void add_weighted_rows(const float* weight, const float* rows, int64_t count, int64_t padded_dim,
                       float* out) {
  for (int64_t d = 0; d < padded_dim; d += kLanes) {
    Vf sum[kRows];
    for (int r = 0; r < kRows; ++r) sum[r] = load(out + r * padded_dim + d);
    for (int64_t j = 0; j < count; ++j) {
      const Vf value = load(rows + j * padded_dim + d);
      for (int r = 0; r < kRows; ++r) sum[r] += weight[r * kTile + j] * value;
    }
    for (int r = 0; r < kRows; ++r) store(out + r * padded_dim + d, sum[r]);
  }
}

/// The kRows queries from i; past the end the last query stands in, and its results are dropped.
struct Group {
  const float* query[kRows];
  int64_t keys[kRows];  // how many keys each sees; 0 for stand-ins
  int64_t rows, most;
};
Group make_group(const JaggedAttention& p, const Task& t, int64_t i) {
  Group g{};
  g.rows = std::min<int64_t>(kRows, t.nq - i);
  for (int64_t r = 0; r < kRows; ++r) {
    const int64_t query = std::min(i + r, t.nq - 1);
    g.query[r] = t.q + query * p.q.token_stride;
    g.keys[r] = r < g.rows ? t.keys_of(query, p.causal) : 0;
    g.most = std::max(g.most, g.keys[r]);
  }
  return g;
}

/// Scores of one tile to exp(score - max), with the running maximum, sum and output rescaled.
void online_softmax(float* score, int64_t visible, int64_t count, float scale, float& max,
                    float& sum, float* o, int64_t padded_dim) {
  visible = std::clamp<int64_t>(visible, 0, count);
  Vf highest = splat(-kInfinity);
  for_lanes(visible, [&](int64_t j, int n) {
    highest = vmax(load_some(score + j, n, -kInfinity) * scale, highest);
  });
  const float new_max = std::max(max, visible > 0 ? reduce_max(highest) : -kInfinity);
  if (visible > 0) {
    if (max > -kInfinity && new_max > max) {
      const float shrink = vexp(splat(max - new_max))[0];
      sum *= shrink;
      for (int64_t d = 0; d < padded_dim; d += kLanes) store(o + d, load(o + d) * shrink);
    }
    Vf total{};
    for_lanes(visible, [&](int64_t j, int n) {
      Vf e = vexp(load(score + j) * scale - new_max);
      for (int lane = n; lane < kLanes; ++lane) e[lane] = 0.0f;
      total += e;
      store(score + j, e);
    });
    sum += reduce_add(total);
    max = new_max;
  }
  for (int64_t j = round_up(visible, kLanes); j < count; ++j) score[j] = 0.0f;
}

void forward_group(const JaggedAttention& p, const Task& t, int64_t i, float* score, float* o) {
  const Group g = make_group(p, t, i);
  float max[kRows], sum[kRows] = {};
  std::fill_n(max, kRows, -kInfinity);
  std::fill_n(o, kRows * t.padded_dim, 0.0f);
  for (int64_t first = 0; first < g.most; first += kTile) {
    const int64_t count = std::min(kTile, g.most - first);
    outer_products(g.query, t.keys_t, t.padded_nk, t.dim, first, count, score);
    for (int r = 0; r < kRows; ++r)
      online_softmax(score + r * kTile, g.keys[r] - first, count, static_cast<float>(p.scale),
                     max[r], sum[r], o + r * t.padded_dim, t.padded_dim);
    add_weighted_rows(score, t.values + first * t.padded_dim, count, t.padded_dim, o);
  }
  for (int64_t r = 0; r < g.rows; ++r) {
    const float inverse = sum[r] > 0.0f ? 1.0f / sum[r] : 0.0f * sum[r];
    float* out = row_out(p.o, t.first_q + i + r, t.head);
    for_lanes(t.dim, [&](int64_t d, int n) {
      store_some(out + d, load(o + r * t.padded_dim + d) * inverse, n);
    });
    p.lse[t.head * p.q_tokens + t.first_q + i + r] = max[r] + std::log(sum[r]);
  }
}

/// P and dS of one tile, in place over the scores and the products d_o . v.
void score_gradients(float* score, float* product, int64_t visible, int64_t count, float scale,
                     float lse, float delta) {
  visible = std::clamp<int64_t>(visible, 0, count);
  for_lanes(visible, [&](int64_t j, int n) {
    Vf probability = vexp(load(score + j) * scale - lse);
    for (int lane = n; lane < kLanes; ++lane) probability[lane] = 0.0f;
    store(score + j, probability);
    store(product + j, probability * (load(product + j) - delta) * scale);
  });
  for (int64_t j = round_up(visible, kLanes); j < count; ++j) score[j] = product[j] = 0.0f;
}

/// out[j][:] += sum_r weight[r][j] * a[r][:]
void add_outer(const float* weight, const float* a, int64_t count, int64_t padded_dim, float* out) {
  for (int64_t d = 0; d < padded_dim; d += kLanes) {
    Vf value[kRows];
    for (int r = 0; r < kRows; ++r) value[r] = load(a + r * padded_dim + d);
    for (int64_t j = 0; j < count; ++j) {
      Vf sum = load(out + j * padded_dim + d);
      for (int r = 0; r < kRows; ++r) sum += weight[r * kTile + j] * value[r];
      store(out + j * padded_dim + d, sum);
    }
  }
}

struct BackwardMemory {
  float *score, *product, *query, *d_out, *d_query, *d_keys, *d_values;
};

void backward_group(const JaggedAttention& p, const Task& t, int64_t i, const BackwardMemory& m) {
  const Group g = make_group(p, t, i);
  const float* d_out_rows[kRows];
  float lse[kRows], delta[kRows];
  std::fill_n(m.d_query, kRows * t.padded_dim, 0.0f);
  std::fill_n(m.query, kRows * t.padded_dim, 0.0f);
  std::fill_n(m.d_out, kRows * t.padded_dim, 0.0f);
  for (int64_t r = 0; r < kRows; ++r) {
    const int64_t token = t.first_q + std::min(i + r, t.nq - 1);
    d_out_rows[r] = row(p.d_o, token, t.head);
    lse[r] = p.lse[t.head * p.q_tokens + token];
    Vf total{};
    const float* o = row(p.o, token, t.head);
    for_lanes(t.dim, [&](int64_t d, int n) {
      total += load_some(o + d, n) * load_some(d_out_rows[r] + d, n);
    });
    delta[r] = reduce_add(total);
    std::memcpy(m.query + r * t.padded_dim, g.query[r], t.dim * sizeof(float));
    std::memcpy(m.d_out + r * t.padded_dim, d_out_rows[r], t.dim * sizeof(float));
  }
  for (int64_t first = 0; first < g.most; first += kTile) {
    const int64_t count = std::min(kTile, g.most - first);
    outer_products(g.query, t.keys_t, t.padded_nk, t.dim, first, count, m.score);
    outer_products(d_out_rows, t.values_t, t.padded_nk, t.dim, first, count, m.product);
    for (int r = 0; r < kRows; ++r)
      score_gradients(m.score + r * kTile, m.product + r * kTile, g.keys[r] - first, count,
                      static_cast<float>(p.scale), lse[r], delta[r]);
    add_weighted_rows(m.product, t.keys + first * t.padded_dim, count, t.padded_dim, m.d_query);
    add_outer(m.product, m.query, count, t.padded_dim, m.d_keys + first * t.padded_dim);
    add_outer(m.score, m.d_out, count, t.padded_dim, m.d_values + first * t.padded_dim);
  }
  for (int64_t r = 0; r < g.rows; ++r)
    std::memcpy(row_out(p.d_q, t.first_q + i + r, t.head), m.d_query + r * t.padded_dim,
                t.dim * sizeof(float));
}

void copy_out(const HeadsView& view, int64_t first, const Task& t, const float* rows) {
  for (int64_t j = 0; j < t.nk; ++j)
    std::memcpy(row_out(view, first + j, t.head), rows + j * t.padded_dim, t.dim * sizeof(float));
}

}  // namespace

void jagged_attention_forward_cpu(const JaggedAttention& p, int64_t begin, int64_t end) {
  Workspace workspace;
  for (int64_t index = begin; index < end; ++index) {
    const Task t = make_task(p, index, false, workspace);
    float* score = workspace.take(kRows * kTile);
    float* o = workspace.take(kRows * t.padded_dim);
    for (int64_t i = 0; i < t.nq; i += kRows) forward_group(p, t, i, score, o);
  }
}

void jagged_attention_backward_cpu(const JaggedAttention& p, int64_t begin, int64_t end) {
  Workspace workspace;
  for (int64_t index = begin; index < end; ++index) {
    const Task t = make_task(p, index, true, workspace);
    const int64_t group = kRows * t.padded_dim, rows = t.nk * t.padded_dim;
    BackwardMemory m{workspace.take(kRows * kTile), workspace.take(kRows * kTile),
                     workspace.take(group),         workspace.take(group),
                     workspace.take(group),         workspace.take(rows),
                     workspace.take(rows)};
    std::fill_n(m.d_keys, rows, 0.0f);
    std::fill_n(m.d_values, rows, 0.0f);
    for (int64_t i = 0; i < t.nq; i += kRows) backward_group(p, t, i, m);
    copy_out(p.d_k, p.k_offsets[index / p.heads], t, m.d_keys);
    copy_out(p.d_v, p.k_offsets[index / p.heads], t, m.d_values);
  }
}

}  // namespace tautline::kernels::TAUTLINE_ISA
