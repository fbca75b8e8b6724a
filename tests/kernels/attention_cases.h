// Problems of attention and gdpa: tensors for a shape, drawn or named. The output arrays start as
// -7, so that a value that nobody writes is seen.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include <rapidcheck.h>

#include "tautline/kernels/attention.h"

#include "kernels/close.h"

namespace tautline::kernels::testing {

struct AttentionCase {
  std::vector<int64_t> q_lengths, k_lengths;  // q_lengths empty: `seeds` queries for every sequence
  int64_t heads = 2, kv_heads = 2, head_dim = 32, value_dim = 32;
  AttentionWindow window;
  int64_t seeds = 0;
  int64_t distances = 0, time_buckets = 0;  // 0: no such bias
  bool shared_tables = false;
  bool packed = false;  // q, k, v in one projection (equal lengths)
  int64_t gap = 0;      // elements between the heads' rows
};

inline std::vector<int64_t> offsets_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets{0};
  for (const int64_t n : lengths) offsets.push_back(offsets.back() + n);
  return offsets;
}

/// A strided [tokens, heads, dim] tensor.
struct HeadsTensor {
  int64_t tokens = 0, heads = 0, dim = 0, gap = 0;
  std::vector<float> data;
  HeadsView view;

  void fill(int64_t t, int64_t h, int64_t d, int64_t space, uint64_t seed) {
    tokens = t, heads = h, dim = d, gap = space;
    const int64_t size = t * h * (d + gap);
    data = seed ? normals(size, seed) : std::vector<float>(size, -7.0f);
    view = {data.data(), h * (d + gap), d + gap};
  }
  /// Without the gaps: [tokens, heads * dim].
  std::vector<float> values() const {
    std::vector<float> out;
    for (int64_t row = 0; row < tokens * heads; ++row)
      out.insert(out.end(), data.begin() + row * (dim + gap),
                 data.begin() + row * (dim + gap) + dim);
    return out;
  }
};

/// The tensors of a case, and params P (JaggedAttention or Gdpa) that point at them.
template <class P>
struct AttentionData {
  explicit AttentionData(const AttentionCase& c)
      : q_offsets(offsets_of(c.q_lengths)), k_offsets(offsets_of(c.k_lengths)) {
    p.sequences = static_cast<int64_t>(c.k_lengths.size());
    p.heads = c.heads;
    p.kv_heads = c.kv_heads;
    p.head_dim = c.head_dim;
    p.value_dim = c.value_dim;
    p.window = c.window;
    p.k_offsets = k_offsets.data();
    if (c.seeds == 0) p.q_offsets = q_offsets.data();
    p.max_q = c.seeds;  // the CPU wants max_q of broadcast queries alone
    const int64_t queries = c.seeds ? c.seeds : q_offsets.back();
    p.rows = c.seeds ? p.sequences * c.seeds : queries;
    p.k_tokens = k_offsets.back();
    q.fill(queries, c.heads, c.head_dim, c.gap, 1);
    k.fill(p.k_tokens, c.kv_heads, c.head_dim, c.gap, 2);
    v.fill(p.k_tokens, c.kv_heads, c.value_dim, c.gap, 3);
    p.q = q.view, p.k = k.view, p.v = v.view;
    if (c.packed) {
      const int64_t width = (c.heads + c.kv_heads) * c.head_dim + c.kv_heads * c.value_dim;
      packed = normals(p.k_tokens * width, 1);
      p.q = {packed.data(), width, c.head_dim};
      p.k = {packed.data() + c.heads * c.head_dim, width, c.head_dim};
      p.v = {packed.data() + (c.heads + c.kv_heads) * c.head_dim, width, c.value_dim};
    }
    o.fill(p.rows, c.heads, c.value_dim, c.gap, 0);
    d_o.fill(p.rows, c.heads, c.value_dim, c.gap, 4);
    d_q.fill(p.rows, c.heads, c.head_dim, c.gap, 0);
    d_k.fill(p.k_tokens, c.kv_heads, c.head_dim, c.gap, 0);
    d_v.fill(p.k_tokens, c.kv_heads, c.value_dim, c.gap, 0);
    p.o = o.view, p.d_o = d_o.view, p.d_q = d_q.view, p.d_k = d_k.view, p.d_v = d_v.view;
    add_bias(c, queries);
  }
  AttentionData(const AttentionData&) = delete;

  void finish() { v3::attention_bias_finish_cpu(p, 0, position_tables(p) + time_tables(p)); }

  std::vector<int64_t> q_offsets, k_offsets, q_time, k_time;
  std::vector<float> packed;
  HeadsTensor q, k, v, o, d_o, d_q, d_k, d_v;
  std::vector<float> position, time, d_position, d_time, position_partial, time_partial;
  P p;

 private:
  void add_bias(const AttentionCase& c, int64_t queries) {
    const int64_t tables = c.shared_tables ? 1 : c.heads;
    if (c.distances > 0) {
      const int64_t width = 2 * c.distances - 1;
      position = normals(tables * width, 5);
      d_position.assign(position.size(), -7.0f);
      position_partial.assign(c.heads * (p.rows + p.k_tokens), -7.0f);
      p.bias.position = position.data();
      p.bias.distances = c.distances;
      p.bias.position_stride = c.shared_tables ? 0 : width;
      p.bias.position_partial = position_partial.data();
      p.bias.d_position = d_position.data();
    }
    if (c.time_buckets > 0) {
      Random random(6, RandomUse::kSynthetic);
      // Gaps over many octaves, in both directions.
      const auto times = [&](int64_t n) {
        std::vector<int64_t> t(n);
        for (int64_t& x : t) x = static_cast<int64_t>(random.below(1ull << (1 + random.below(40))));
        return t;
      };
      q_time = times(queries);
      k_time = times(p.k_tokens);
      time = normals(tables * c.time_buckets, 7);
      d_time.assign(time.size(), -7.0f);
      time_partial.assign(c.heads * p.sequences * c.time_buckets, -7.0f);
      p.bias.time = time.data();
      p.bias.time_buckets = c.time_buckets;
      p.bias.time_stride = c.shared_tables ? 0 : c.time_buckets;
      p.bias.q_time = q_time.data();
      p.bias.k_time = k_time.data();
      p.bias.time_partial = time_partial.data();
      p.bias.d_time = d_time.data();
    }
  }
};

inline int64_t longest(const AttentionCase& c) {
  int64_t n = std::max<int64_t>(1, c.seeds);
  for (const int64_t x : c.q_lengths) n = std::max(n, x);
  for (const int64_t x : c.k_lengths) n = std::max(n, x);
  return n;
}

/// Units of a sum over the keys of weights that are functions of scores: a score is a sum of D
/// terms of size up to 5 and the slope of its function is about 1; then sums over up to `terms`
/// products in tiles and lanes. Sequential terms lose their square root on average, all is the
/// bound.
inline double attention_units(const AttentionCase& c, int64_t terms) {
  return 5.0 * (static_cast<double>(std::max(c.head_dim, c.value_dim)) / 4 + 4) + terms / 4.0 + 16;
}

/// Size of the errors that add up in a bias table: those of all pairs, independent of each other.
inline double table_floor(const AttentionCase& c) {
  double pairs = 0;
  for (size_t b = 0; b < c.k_lengths.size(); ++b)
    pairs += static_cast<double>(c.k_lengths[b]) * (c.seeds ? c.seeds : c.q_lengths[b]);
  return 1 + std::sqrt(pairs * static_cast<double>(c.heads));
}

/// rc::check draws the same cases in every run, unless RC_PARAMS says otherwise.
inline const int kRapidcheckSeed = setenv("RC_PARAMS", "seed=20261130", /*overwrite=*/0);

/// Uniform in [low, high], whatever rapidcheck's size.
inline int64_t drawn(int64_t low, int64_t high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<int64_t>(low, high + 1));
}

/// Any small problem: lengths with empty ones, windows, grouped heads, seeds, biases, strides.
inline AttentionCase any_attention_case() {
  const auto in = drawn;
  AttentionCase c;
  const int64_t sequences = in(0, 5);
  const int64_t kind = in(0, 2);  // self, cross, broadcast
  for (int64_t b = 0; b < sequences; ++b) {
    c.k_lengths.push_back(in(0, 3) == 0 ? 0 : in(0, 40));
    if (kind == 0) c.q_lengths.push_back(c.k_lengths.back());
    if (kind == 1) c.q_lengths.push_back(in(0, 3) == 0 ? 0 : in(0, 40));
  }
  c.seeds = kind == 2 ? in(1, 9) : 0;
  c.kv_heads = in(1, 3);
  c.heads = c.kv_heads * in(1, 3);
  c.head_dim = in(1, 40);
  c.value_dim = in(0, 1) ? c.head_dim : in(1, 40);
  c.window = {in(0, 1) ? -1 : in(0, 20), in(0, 1) ? -1 : in(0, 20)};
  c.distances = in(0, 1) ? 0 : in(1, 30);
  c.time_buckets = in(0, 1) ? 0 : in(1, 127);
  c.shared_tables = in(0, 1) != 0;
  c.packed = kind == 0 && in(0, 1) != 0;
  c.gap = in(0, 2) == 0 ? in(1, 5) : 0;
  return c;
}

inline std::ostream& operator<<(std::ostream& out, const AttentionCase& c) {
  const auto list = [&](const std::vector<int64_t>& x) {
    for (const int64_t n : x) out << " " << n;
  };
  out << "q lengths";
  list(c.q_lengths);
  out << ", k lengths";
  list(c.k_lengths);
  return out << ", heads " << c.heads << "/" << c.kv_heads << ", dims " << c.head_dim << "/"
             << c.value_dim << ", window " << c.window.left << "," << c.window.right << ", seeds "
             << c.seeds << ", bias " << c.distances << "," << c.time_buckets << " shared "
             << c.shared_tables << ", packed " << c.packed << ", gap " << c.gap;
}

}  // namespace tautline::kernels::testing
