// What the specifications of attention, gdpa and block attention share. Tests only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tautline/kernels/attention_problem.h"

namespace tautline::kernels::reference {

inline float& at(const HeadsView& view, int64_t t, int64_t h, int64_t d) {
  return static_cast<float*>(view.data)[t * view.token_stride + h * view.head_stride + d];
}

inline double dot(const HeadsView& a, int64_t i, int64_t a_head, const HeadsView& b, int64_t j,
                  int64_t b_head, int64_t dim) {
  double total = 0;
  for (int64_t d = 0; d < dim; ++d) total += double{at(a, i, a_head, d)} * at(b, j, b_head, d);
  return total;
}

/// Sequence b: first query token, first row of o, first key token, lengths.
struct Sequence {
  int64_t q, row, k, nq, nk;
};
inline Sequence sequence(const AttentionProblem& p, int64_t b) {
  const int64_t k = p.k_offsets[b], nk = p.k_offsets[b + 1] - k;
  if (!p.q_offsets) return {0, b * p.max_q, k, p.max_q, nk};
  return {p.q_offsets[b], p.q_offsets[b], k, p.q_offsets[b + 1] - p.q_offsets[b], nk};
}

/// Where the bias of (i, j) lies in one row of the position table, and of the time table.
inline int64_t position_entry(const AttentionProblem& p, const Sequence& s, int64_t i, int64_t j) {
  const int64_t far = p.bias.distances - 1;
  return far + std::clamp<int64_t>(i + s.nk - s.nq - j, -far, far);
}
inline int64_t time_entry(const AttentionProblem& p, const Sequence& s, int64_t i, int64_t j) {
  return time_bucket(p.bias.q_time[s.q + i] - p.bias.k_time[s.k + j],
                     static_cast<int32_t>(p.bias.time_buckets));
}
inline double bias(const AttentionProblem& p, const Sequence& s, int64_t head, int64_t i,
                   int64_t j) {
  double total = 0;
  if (p.bias.position)
    total += p.bias.position[head * p.bias.position_stride + position_entry(p, s, i, j)];
  if (p.bias.time) total += p.bias.time[head * p.bias.time_stride + time_entry(p, s, i, j)];
  return total;
}

/// Calls pair(sequence, head, i, j) for every query and every key that it sees, in order.
template <class Pair>
void for_each_pair(const AttentionProblem& p, Pair&& pair) {
  for (int64_t b = 0; b < p.sequences; ++b) {
    const Sequence s = sequence(p, b);
    for (int64_t head = 0; head < p.heads; ++head)
      for (int64_t i = 0; i < s.nq; ++i) {
        const KeyRange keys = visible_keys(p.window, i, s.nq, s.nk);
        for (int64_t j = keys.first; j < keys.last; ++j) pair(s, head, i, j);
      }
  }
}

/// A tensor in double, [T, H, D], rounded to its view at the end.
struct Doubles {
  int64_t tokens, heads, dim;
  std::vector<double> sum = std::vector<double>(tokens * heads * dim);
  double* row(int64_t t, int64_t h) { return sum.data() + (t * heads + h) * dim; }
  void store(const HeadsView& view) {
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t d = 0; d < dim; ++d) at(view, t, h, d) = static_cast<float>(row(t, h)[d]);
  }
};

/// The gradients that every kind of attention has, from those of each pair's weight and score:
/// o_i += weight v_j, score = scale q_i . k_j + bias.
struct Gradients {
  explicit Gradients(const AttentionProblem& p)
      : p(p),
        q{p.rows, p.heads, p.head_dim},
        k{p.k_tokens, p.kv_heads, p.head_dim},
        v{p.k_tokens, p.kv_heads, p.value_dim},
        position(p.bias.position ? entries(p.bias.position_stride, 2 * p.bias.distances - 1) : 0),
        time(p.bias.time ? entries(p.bias.time_stride, p.bias.time_buckets) : 0) {}
  void add(const Sequence& s, int64_t head, int64_t i, int64_t j, double weight, double d_score,
           double scale) {
    const int64_t kv = head / (p.heads / p.kv_heads);
    for (int64_t d = 0; d < p.head_dim; ++d) {
      q.row(s.row + i, head)[d] += d_score * scale * at(p.k, s.k + j, kv, d);
      k.row(s.k + j, kv)[d] += d_score * scale * at(p.q, s.q + i, head, d);
    }
    for (int64_t d = 0; d < p.value_dim; ++d)
      v.row(s.k + j, kv)[d] += weight * at(p.d_o, s.row + i, head, d);
    if (p.bias.position)
      position[head * p.bias.position_stride + position_entry(p, s, i, j)] += d_score;
    if (p.bias.time) time[head * p.bias.time_stride + time_entry(p, s, i, j)] += d_score;
  }
  void store() {
    q.store(p.d_q);
    k.store(p.d_k);
    v.store(p.d_v);
    std::copy(position.begin(), position.end(), p.bias.d_position);
    std::copy(time.begin(), time.end(), p.bias.d_time);
  }

  const AttentionProblem& p;
  Doubles q, k, v;
  std::vector<double> position, time;

 private:
  int64_t entries(int64_t stride, int64_t width) const { return stride ? p.heads * width : width; }
};

}  // namespace tautline::kernels::reference
