// block_attention.h on the CPU, with the products of attention_tile_cpu.h. A task is a block and a
// key/value head. Interleaved pairs are kept half-split inside: scores do not depend on the order
// of channels.
#include <cmath>
#include <limits>

#include "tautline/kernels/attention_tile_cpu.h"
#include "tautline/kernels/block_attention.h"

namespace tautline::kernels::TAUTLINE_ISA {
namespace {

constexpr int64_t kBlock = kAttentionBlock;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
static_assert(kBlock % kLanes == 0 && kBlock <= kTile);

/// cos, then sin, of position * frequency for the channel pairs: [2, half].
void angles(double position, double base, int64_t dim, float* table) {
  for (int64_t c = 0; c < dim / 2; ++c) {
    const double angle = position * ::pow(base, -2.0 * c / dim);
    table[c] = static_cast<float>(::cos(angle));
    table[dim / 2 + c] = static_cast<float>(::sin(angle));
  }
}

/// Channels of one token, pairs c and c + half of `inside` with those of the layout in `outside`.
struct Pairs {
  int64_t half, step, second;  // pair c outside: step * c and step * c + second
};
void turn_in(const Pairs& p, const float* outside, const float* table, float sign, float* inside) {
  for (int64_t c = 0; c < p.half; ++c) {
    const float a = outside[p.step * c], b = outside[p.step * c + p.second];
    const float cosine = table[c], sine = sign * table[p.half + c];
    inside[c] = a * cosine - b * sine;
    inside[p.half + c] = b * cosine + a * sine;
  }
}
void turn_out(const Pairs& p, const float* inside, const float* table, float sign, float* outside) {
  for (int64_t c = 0; c < p.half; ++c) {
    const float a = inside[c], b = inside[p.half + c];
    const float cosine = table[c], sine = sign * table[p.half + c];
    outside[p.step * c] = a * cosine - b * sine;
    outside[p.step * c + p.second] = b * cosine + a * sine;
  }
}

/// What a call keeps: angles of the places of a block, and room for the arrays of one task.
struct Call {
  explicit Call(const BlockAttention& p)
      : p(p), dim(p.head_dim), padded_dim(round_up(dim, kLanes)), heads(p.heads / p.kv_heads) {
    const int64_t row = kBlock * padded_dim;
    workspace.reserve(9 * row + kBlock * dim + dim + 2 * kRows * kTile + 256);
    places = workspace.take(kBlock * dim);
    start = workspace.take(dim);
    for (float** x : {&q, &keys, &values, &d_o, &d_q, &d_k, &d_v, &keys_t, &values_t}) {
      *x = workspace.take(row);
      std::fill_n(*x, row, 0.0f);
    }
    score = workspace.take(kRows * kTile);
    product = workspace.take(kRows * kTile);
    if (p.rope == RopeLayout::kNone) return;
    pairs = p.rope == RopeLayout::kHalfSplit ? Pairs{dim / 2, 1, dim / 2} : Pairs{dim / 2, 2, 1};
    for (int64_t j = 0; j < kBlock; ++j)
      angles(static_cast<double>(j), p.rope_base, dim, places + j * dim);
  }

  /// The block of a task: tokens [first, first + n).
  void find(int64_t block) {
    int64_t low = 0, high = p.sequences;  // block_offsets[low] <= block < block_offsets[high]
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (p.block_offsets[middle] <= block ? low : high) = middle;
    }
    const int64_t place = (block - p.block_offsets[low]) * kBlock;
    first = p.offsets[low] + place;
    n = std::min(kBlock, p.offsets[low + 1] - first);
    padded_n = round_up(n, kLanes);
    if (rotates_values()) angles(static_cast<double>(place), p.rope_base, dim, start);
  }

  bool rotates() const { return p.rope != RopeLayout::kNone; }
  bool rotates_values() const { return rotates() && p.rotate_values; }

  /// The block's rows of one head, turned by their place in it.
  void load_rows(const HeadsView& view, int64_t head, bool turn, float* out) const {
    for (int64_t j = 0; j < n; ++j) {
      const float* in = row(view, first + j, head);
      if (turn) {
        turn_in(pairs, in, places + j * dim, 1.0f, out + j * padded_dim);
      } else {
        std::memcpy(out + j * padded_dim, in, dim * sizeof(float));
      }
    }
  }
  void store_rows(const HeadsView& view, int64_t head, bool turn, const float* in) const {
    for (int64_t j = 0; j < n; ++j) {
      float* out = row_out(view, first + j, head);
      if (turn) {
        turn_out(pairs, in + j * padded_dim, places + j * dim, -1.0f, out);
      } else {
        std::memcpy(out, in + j * padded_dim, dim * sizeof(float));
      }
    }
  }

  /// Rows i .. i + 3 of a packed array; the last stands in past the end.
  void rows_of(const float* packed, int64_t i, const float* out[kRows]) const {
    for (int64_t r = 0; r < kRows; ++r) out[r] = packed + std::min(i + r, n - 1) * padded_dim;
  }

  /// Scores of query i (row r of `score`) to probabilities; 0 for keys it does not see.
  void softmax(int64_t i, int64_t r) const {
    const int64_t last = i >= n ? 0 : p.causal ? i + 1 : n;
    const Span s{0, 0, last, n};
    float* x = score + r * kTile;
    if (last > 0) {
      const auto scale = static_cast<float>(p.scale);
      Vf highest = splat(-kInfinity);
      for_span(s, [&](int64_t j, int lanes) {
        highest = vmax(load_some(x + j, lanes, -kInfinity) * scale, highest);
      });
      const float max = reduce_max(highest);
      Vf total{};
      for_span(s, [&](int64_t j, int lanes) {
        const Vf e = first_lanes(vexp(load(x + j) * scale - max), lanes);
        total += e;
        store(x + j, e);
      });
      const float inverse = 1.0f / reduce_add(total);
      for_span(s, [&](int64_t j, int) { store(x + j, load(x + j) * inverse); });
    }
    clear_outside(s, x);
  }

  /// d_score of row r, in place over its products d_o . v.
  void score_gradient(int64_t r) const {
    const float* probability = score + r * kTile;
    float* x = product + r * kTile;
    const auto scale = static_cast<float>(p.scale);
    Vf total{};
    for_lanes(n, [&](int64_t j, int lanes) {
      total += load_some(probability + j, lanes) * load_some(x + j, lanes);
    });
    const float delta = reduce_add(total);
    for_lanes(n, [&](int64_t j, int) {
      store(x + j, load(probability + j) * (load(x + j) - delta) * scale);
    });
  }

  void forward(int64_t kv_head) {
    load_rows(p.k, kv_head, rotates(), keys);
    load_rows(p.v, kv_head, rotates_values(), values);
    pack_transposed(keys, padded_dim, n, dim, padded_n, keys_t);
    float* o = d_o;
    for (int64_t head = kv_head * heads; head < (kv_head + 1) * heads; ++head) {
      load_rows(p.q, head, rotates(), q);
      for (int64_t i = 0; i < n; i += kRows) {
        const float* query[kRows];
        rows_of(q, i, query);
        outer_products(query, keys_t, padded_n, dim, 0, n, score);
        for (int64_t r = 0; r < kRows; ++r) softmax(i + r, r);
        std::fill_n(o, kRows * padded_dim, 0.0f);
        add_weighted_rows(score, values, n, padded_dim, o);
        for (int64_t r = 0; r < std::min<int64_t>(kRows, n - i); ++r) {
          float* out = row_out(p.o, first + i + r, head);
          if (rotates_values()) {
            turn_out(pairs, o + r * padded_dim, start, 1.0f, out);
          } else {
            std::memcpy(out, o + r * padded_dim, dim * sizeof(float));
          }
        }
      }
    }
  }

  void load_d_o(int64_t head) const {
    for (int64_t j = 0; j < n; ++j) {
      const float* in = row(p.d_o, first + j, head);
      if (rotates_values()) {
        turn_in(pairs, in, start, -1.0f, d_o + j * padded_dim);
      } else {
        std::memcpy(d_o + j * padded_dim, in, dim * sizeof(float));
      }
    }
    // A group's rows past the end weigh nothing, but are multiplied.
    std::fill_n(d_o + n * padded_dim, (round_up(n, kRows) - n) * padded_dim, 0.0f);
    std::fill_n(q + n * padded_dim, (round_up(n, kRows) - n) * padded_dim, 0.0f);
  }

  void backward(int64_t kv_head) {
    load_rows(p.k, kv_head, rotates(), keys);
    load_rows(p.v, kv_head, rotates_values(), values);
    pack_transposed(keys, padded_dim, n, dim, padded_n, keys_t);
    pack_transposed(values, padded_dim, n, dim, padded_n, values_t);
    std::fill_n(d_k, n * padded_dim, 0.0f);
    std::fill_n(d_v, n * padded_dim, 0.0f);
    for (int64_t head = kv_head * heads; head < (kv_head + 1) * heads; ++head) {
      load_rows(p.q, head, rotates(), q);
      load_d_o(head);
      std::fill_n(d_q, round_up(n, kRows) * padded_dim, 0.0f);
      for (int64_t i = 0; i < n; i += kRows) {
        const float *query[kRows], *d_out[kRows];
        rows_of(q, i, query);
        rows_of(d_o, i, d_out);
        outer_products(query, keys_t, padded_n, dim, 0, n, score);
        outer_products(d_out, values_t, padded_n, dim, 0, n, product);
        for (int64_t r = 0; r < kRows; ++r) {
          softmax(i + r, r);
          score_gradient(r);
        }
        add_weighted_rows(product, keys, n, padded_dim, d_q + i * padded_dim);
        add_outer(product, q + i * padded_dim, n, padded_dim, d_k);
        add_outer(score, d_o + i * padded_dim, n, padded_dim, d_v);
      }
      store_rows(p.d_q, head, rotates(), d_q);
    }
    store_rows(p.d_k, kv_head, rotates(), d_k);
    store_rows(p.d_v, kv_head, rotates_values(), d_v);
  }

  const BlockAttention& p;
  int64_t dim, padded_dim, heads;
  int64_t first = 0, n = 0, padded_n = 0;
  Pairs pairs{};
  Workspace workspace;
  float *places, *start;  // [kBlock, dim] and [dim], see angles
  float *q, *keys, *values, *d_o, *d_q, *d_k, *d_v, *keys_t, *values_t;
  float *score, *product;
};

}  // namespace

void block_attention_forward_cpu(const BlockAttention& p, int64_t begin, int64_t end) {
  Call call(p);
  for (int64_t index = begin; index < end; ++index) {
    call.find(index / p.kv_heads);
    call.forward(index % p.kv_heads);
  }
}

void block_attention_backward_cpu(const BlockAttention& p, int64_t begin, int64_t end) {
  Call call(p);
  for (int64_t index = begin; index < end; ++index) {
    call.find(index / p.kv_heads);
    call.backward(index % p.kv_heads);
  }
}

}  // namespace tautline::kernels::TAUTLINE_ISA
