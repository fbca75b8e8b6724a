// The pieces of attention on the CPU: packed keys and values, products of a few queries with a tile
// of keys, the bias. Included by attention_cpu.cpp, gdpa_cpu.cpp and block_attention_cpu.cpp only,
// into the namespace of the instruction set.
//
// A task is one key/value head of one sequence. Its keys and values are packed once, transposed, so
// that a vector lane is a key: scores of kRows queries against kLanes keys are outer products held
// in registers. Queries go in groups of kRows; keys in tiles of kTile, whose scores stay in cache.
// The backward packs v transposed too and accumulates d_k and d_v of the task in FP32; query heads
// that share the key/value head come one after the other.
#pragma once

#include <algorithm>
#include <cstdlib>

#include "tautline/kernels/attention_problem.h"
#include "tautline/kernels/simd.h"

namespace tautline::kernels::TAUTLINE_ISA {
namespace {

constexpr int kRows = 4;
constexpr int64_t kTile = 512;  // keys; a multiple of kLanes

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

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

inline const float* row(const HeadsView& view, int64_t token, int64_t head) {
  return floats(view.data) + token * view.token_stride + head * view.head_stride;
}
inline float* row_out(const HeadsView& view, int64_t token, int64_t head) {
  return floats(view.data) + token * view.token_stride + head * view.head_stride;
}

/// [n, dim] -> [dim, padded_n], zeros behind.
inline void pack_transposed(const float* in, int64_t stride, int64_t n, int64_t dim,
                            int64_t padded_n, float* out) {
  for (int64_t d = 0; d < dim; ++d) {
    float* line = out + d * padded_n;
    if (n < padded_n) store(line + padded_n - kLanes, Vf{});
    for (int64_t j = 0; j < n; ++j) line[j] = in[j * stride + d];
  }
}
/// [n, dim] -> [n, padded_dim], zeros behind.
inline void pack_rows(const float* in, int64_t stride, int64_t n, int64_t dim, int64_t padded_dim,
                      float* out) {
  for (int64_t j = 0; j < n; ++j) {
    if (dim < padded_dim) store(out + (j + 1) * padded_dim - kLanes, Vf{});
    std::memcpy(out + j * padded_dim, in + j * stride, dim * sizeof(float));
  }
}

// The three products are not inlined: inside a longer function their registers spill.

/// out[r][j] = sum_d a[r][d] * b_t[d][first + j] for j < count (rounded up to lanes).
[[gnu::noinline]] inline void outer_products(const float* const a[kRows], const float* b_t,
                                             int64_t padded_n, int64_t dim, int64_t first,
                                             int64_t count, float* out) {
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
[[gnu::noinline]] inline void add_weighted_rows(const float* weight, const float* rows,
                                                int64_t count, int64_t padded_dim, float* out) {
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

/// out[j][:] += sum_r weight[r][j] * a[r][:]
[[gnu::noinline]] inline void add_outer(const float* weight, const float* a, int64_t count,
                                        int64_t padded_dim, float* out) {
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

struct Task {
  int64_t sequence, kv_head, first_head, heads;  // query heads [first_head, first_head + heads)
  int64_t first_row, first_q, first_k;           // row of o, query token, key token
  int64_t nq, nk, dim, value_dim, padded_dim, padded_value_dim, padded_nk;
  float *keys_t, *values, *values_t, *keys;  // [dim, padded_nk], [nk, padded_value_dim] and so on
};

inline Task make_task(const AttentionProblem& p, int64_t index, bool backward,
                      Workspace& workspace) {
  Task t{};
  t.sequence = index / p.kv_heads;
  t.kv_head = index % p.kv_heads;
  t.heads = p.heads / p.kv_heads;
  t.first_head = t.kv_head * t.heads;
  t.first_k = p.k_offsets[t.sequence];
  t.nk = p.k_offsets[t.sequence + 1] - t.first_k;
  t.first_q = p.q_offsets ? p.q_offsets[t.sequence] : 0;
  t.nq = p.q_offsets ? p.q_offsets[t.sequence + 1] - t.first_q : p.max_q;
  t.first_row = p.q_offsets ? t.first_q : t.sequence * t.nq;
  t.dim = p.head_dim;
  t.value_dim = p.value_dim;
  t.padded_dim = round_up(t.dim, kLanes);
  t.padded_value_dim = round_up(t.value_dim, kLanes);
  t.padded_nk = round_up(t.nk, kLanes);
  const float *k = row(p.k, t.first_k, t.kv_head), *v = row(p.v, t.first_k, t.kv_head);
  const int64_t k_size = round_up(t.nk * t.padded_dim, 16);
  const int64_t v_size = round_up(t.nk * t.padded_value_dim, 16);
  const int64_t k_t_size = round_up(t.dim * t.padded_nk, 16);
  const int64_t v_t_size = round_up(t.value_dim * t.padded_nk, 16);
  const int64_t line = p.bias.any() ? t.nq + t.nk : 0;
  const int64_t group = kRows * (2 * kTile + 3 * t.padded_dim + 3 * t.padded_value_dim) + 128;
  const int64_t packed = backward ? k_t_size + v_t_size + 2 * k_size + v_size : k_t_size + v_size;
  workspace.reserve(packed + group + line);
  t.keys_t = workspace.take(k_t_size);
  pack_transposed(k, p.k.token_stride, t.nk, t.dim, t.padded_nk, t.keys_t);
  if (backward) {
    t.values_t = workspace.take(v_t_size);
    pack_transposed(v, p.v.token_stride, t.nk, t.value_dim, t.padded_nk, t.values_t);
    t.keys = workspace.take(k_size);
    pack_rows(k, p.k.token_stride, t.nk, t.dim, t.padded_dim, t.keys);
  } else {
    t.values = workspace.take(v_size);
    pack_rows(v, p.v.token_stride, t.nk, t.value_dim, t.padded_value_dim, t.values);
  }
  return t;
}

/// The kRows queries of a head from i; past the end the last query stands in, sees no key, and its
/// results are dropped.
struct Group {
  int64_t head, i, rows;
  const float* query[kRows];
  KeyRange keys[kRows];
  int64_t from, to;  // all keys that any of them sees; `from` is a multiple of kLanes
};
inline Group make_group(const AttentionProblem& p, const Task& t, int64_t head, int64_t i) {
  Group g{head, i, std::min<int64_t>(kRows, t.nq - i), {}, {}, t.nk, 0};
  for (int64_t r = 0; r < kRows; ++r) {
    const int64_t query = std::min(i + r, t.nq - 1);
    g.query[r] = row(p.q, t.first_q + query, head);
    if (r >= g.rows) continue;
    g.keys[r] = visible_keys(p.window, query, t.nq, t.nk);
    g.from = std::min(g.from, g.keys[r].first);
    g.to = std::max(g.to, g.keys[r].last);
  }
  g.from = g.from / kLanes * kLanes;
  return g;
}

/// Of `count` keys from `tile`: [first, last) are seen; [start, first) are the lanes before them.
struct Span {
  int64_t start, first, last, count;
};
inline Span span_of(const KeyRange& keys, int64_t tile, int64_t count) {
  const int64_t first = clamp_to(keys.first - tile, 0, count);
  return {first / kLanes * kLanes, first, clamp_to(keys.last - tile, first, count), count};
}
/// Zero outside of [first, last), after all lanes from `start` were written by for_span, those
/// behind `last` as zeros.
inline void clear_outside(const Span& s, float* values) {
  if (s.first > 0) std::fill_n(values, s.first, 0.0f);
  const int64_t written = s.last > s.first ? round_up(s.last, kLanes) : s.first;
  for (int64_t j = written; j < s.count; ++j) values[j] = 0.0f;
}
/// v with zeros in the lanes from n.
TAUTLINE_ALWAYS_INLINE Vf first_lanes(Vf v, int n) {
  for (int lane = n; lane < kLanes; ++lane) v[lane] = 0.0f;
  return v;
}
/// Calls body(offset, lanes) over [start, last).
template <class Body>
TAUTLINE_ALWAYS_INLINE void for_span(const Span& s, Body&& body) {
  if (s.last > s.first)
    for_lanes(s.last - s.start, [&](int64_t j, int n) { body(s.start + j, n); });
}

/// The bias of one head of one sequence. Along a query's row the position entries are contiguous:
/// `line` holds them by j - p, from -(nk - 1) up.
struct BiasRows {
  const float *line = nullptr, *time = nullptr;
  const int64_t *q_time = nullptr, *k_time = nullptr;
  int32_t buckets = 0;
  int64_t nq = 0;
  float *d_line = nullptr, *d_time = nullptr;  // partial sums of the backward, or null

  const float* row(int64_t i, int64_t tile) const { return line + tile + nq - 1 - i; }
};

inline BiasRows make_bias_rows(const AttentionProblem& p, const Task& t, int64_t head,
                               float* line) {
  BiasRows rows;
  rows.nq = t.nq;
  const AttentionBias& b = p.bias;
  if (b.position) {
    const float* table = b.position + head * b.position_stride;
    const int64_t far = b.distances - 1, entries = t.nq + t.nk - 1;
    for (int64_t u = 0; u < entries; ++u) line[u] = table[far + clamp_to(t.nk - 1 - u, -far, far)];
    rows.line = line;
    if (b.position_partial) {
      rows.d_line = b.position_partial + head * (p.rows + p.k_tokens) + t.first_row + t.first_k;
      std::fill_n(rows.d_line, t.nq + t.nk, 0.0f);
    }
  }
  if (b.time) {
    rows.time = b.time + head * b.time_stride;
    rows.q_time = b.q_time + t.first_q;
    rows.k_time = b.k_time + t.first_k;
    rows.buckets = static_cast<int32_t>(b.time_buckets);
    if (b.time_partial) {
      rows.d_time = b.time_partial + (head * p.sequences + t.sequence) * b.time_buckets;
      std::fill_n(rows.d_time, b.time_buckets, 0.0f);
    }
  }
  return rows;
}

/// score = scale * score + bias over [start, last) of query i's tile.
inline void add_bias(const BiasRows& b, int64_t i, int64_t tile, const Span& s, float scale,
                     float* score) {
  for_span(s, [&](int64_t j, int n) {
    Vf x = load(score + j) * scale;
    if (b.line) x += load_some(b.row(i, tile) + j, n);
    store(score + j, x);
  });
  if (!b.time) return;
  const int64_t query_time = b.q_time[i], *key_time = b.k_time + tile;
  for (int64_t j = s.first; j < s.last; ++j)
    score[j] += b.time[time_bucket(query_time - key_time[j], b.buckets)];
}

/// Adds query i's d_score to the partial sums.
inline void add_bias_gradient(const BiasRows& b, int64_t i, int64_t tile, const Span& s,
                              const float* d_score, double* d_time) {
  if (b.d_line)
    for_span(s, [&](int64_t j, int n) {
      float* line = b.d_line + tile + b.nq - 1 - i + j;
      store_some(line, load_some(line, n) + load(d_score + j), n);
    });
  if (!b.d_time) return;
  const int64_t query_time = b.q_time[i], *key_time = b.k_time + tile;
  for (int64_t j = s.first; j < s.last; ++j)
    d_time[time_bucket(query_time - key_time[j], b.buckets)] += d_score[j];
}

/// The backward's arrays of one task.
struct BackwardMemory {
  float *score, *product, *query, *d_out, *d_query, *d_keys, *d_values, *line;
};
inline BackwardMemory take_backward_memory(const Task& t, bool bias, Workspace& workspace) {
  BackwardMemory m{};
  m.score = workspace.take(kRows * kTile);
  m.product = workspace.take(kRows * kTile);
  m.query = workspace.take(kRows * t.padded_dim);
  m.d_out = workspace.take(kRows * t.padded_value_dim);
  m.d_query = workspace.take(kRows * t.padded_dim);
  m.d_keys = workspace.take(t.nk * t.padded_dim);
  m.d_values = workspace.take(t.nk * t.padded_value_dim);
  m.line = bias ? workspace.take(t.nq + t.nk) : nullptr;
  std::fill_n(m.d_keys, t.nk * t.padded_dim, 0.0f);
  std::fill_n(m.d_values, t.nk * t.padded_value_dim, 0.0f);
  return m;
}

/// The group's queries and output gradients, padded, for the outer products; d_query = 0.
inline void load_group(const AttentionProblem& p, const Task& t, const Group& g,
                       const float* d_out_rows[kRows], const BackwardMemory& m) {
  std::fill_n(m.d_query, kRows * t.padded_dim, 0.0f);
  for (int64_t r = 0; r < kRows; ++r) {
    d_out_rows[r] = row(p.d_o, t.first_row + std::min(g.i + r, t.nq - 1), g.head);
    pack_rows(g.query[r], 0, 1, t.dim, t.padded_dim, m.query + r * t.padded_dim);
    pack_rows(d_out_rows[r], 0, 1, t.value_dim, t.padded_value_dim,
              m.d_out + r * t.padded_value_dim);
  }
}

/// From the tile's weights (in m.score) and scaled d_score (in m.product).
inline void add_tile_gradients(const Task& t, int64_t tile, int64_t count,
                               const BackwardMemory& m) {
  add_weighted_rows(m.product, t.keys + tile * t.padded_dim, count, t.padded_dim, m.d_query);
  add_outer(m.product, m.query, count, t.padded_dim, m.d_keys + tile * t.padded_dim);
  add_outer(m.score, m.d_out, count, t.padded_value_dim, m.d_values + tile * t.padded_value_dim);
}

inline void store_d_query(const AttentionProblem& p, const Task& t, const Group& g,
                          const float* d_query) {
  for (int64_t r = 0; r < g.rows; ++r)
    std::memcpy(row_out(p.d_q, t.first_row + g.i + r, g.head), d_query + r * t.padded_dim,
                t.dim * sizeof(float));
}

inline void store_d_keys(const AttentionProblem& p, const Task& t, const BackwardMemory& m) {
  for (int64_t j = 0; j < t.nk; ++j) {
    std::memcpy(row_out(p.d_k, t.first_k + j, t.kv_head), m.d_keys + j * t.padded_dim,
                t.dim * sizeof(float));
    std::memcpy(row_out(p.d_v, t.first_k + j, t.kv_head), m.d_values + j * t.padded_value_dim,
                t.value_dim * sizeof(float));
  }
}

/// Sums of the time buckets of one head, in double: a bucket has up to nq * nk terms.
struct TimeSums {
  explicit TimeSums(const AttentionBias& b)
      : size(b.time_partial ? b.time_buckets : 0),
        sum(static_cast<double*>(std::calloc(size > 0 ? size : 1, sizeof(double)))) {}
  ~TimeSums() { std::free(sum); }
  TimeSums(const TimeSums&) = delete;
  TimeSums& operator=(const TimeSums&) = delete;
  /// To the head's partial sums; zero again.
  void move_to(float* partial) {
    for (int64_t n = 0; n < size; ++n) {
      partial[n] = static_cast<float>(sum[n]);
      sum[n] = 0;
    }
  }
  int64_t size;
  double* sum;
};

}  // namespace
}  // namespace tautline::kernels::TAUTLINE_ISA
