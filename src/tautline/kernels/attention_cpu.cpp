// attention.h on the CPU; its pieces are in attention_tile_cpu.h. Between tiles of keys the running
// maximum rescales (Milakov & Gimelshein 2018), so memory does not grow with length.
#include <cmath>
#include <limits>

#include "tautline/kernels/attention.h"
#include "tautline/kernels/attention_tile_cpu.h"

namespace tautline::kernels::TAUTLINE_ISA {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Scores of one tile to exp(score - max), with the running maximum, sum and output rescaled.
void online_softmax(float* score, const Span& s, float scale, float& max, float& sum, float* o,
                    int64_t padded_dim) {
  if (s.last > s.first) {
    if (s.start < s.first) {
      for_span(s, [&](int64_t j, int) { store(score + j, load(score + j) * scale); });
      scale = 1.0f;
      std::fill(score + s.start, score + s.first, -kInfinity);
    }
    Vf highest = splat(-kInfinity);
    for_span(s, [&](int64_t j, int n) {
      highest = vmax(load_some(score + j, n, -kInfinity) * scale, highest);
    });
    const float new_max = std::max(max, reduce_max(highest));
    if (max > -kInfinity && new_max > max) {
      const float shrink = vexp(splat(max - new_max))[0];
      sum *= shrink;
      for (int64_t d = 0; d < padded_dim; d += kLanes) store(o + d, load(o + d) * shrink);
    }
    Vf total{};
    for_span(s, [&](int64_t j, int n) {
      const Vf e = first_lanes(vexp(load(score + j) * scale - new_max), n);
      total += e;
      store(score + j, e);
    });
    sum += reduce_add(total);
    max = new_max;
  }
  clear_outside(s, score);
}

void forward_group(const JaggedAttention& p, const Task& t, const Group& g, const BiasRows* bias,
                   float* score, float* o) {
  float max[kRows], sum[kRows] = {};
  std::fill_n(max, kRows, -kInfinity);
  std::fill_n(o, kRows * t.padded_value_dim, 0.0f);
  const auto scale = static_cast<float>(p.scale);
  for (int64_t tile = g.from; tile < g.to; tile += kTile) {
    const int64_t count = std::min(kTile, g.to - tile);
    outer_products(g.query, t.keys_t, t.padded_nk, t.dim, tile, count, score);
    for (int64_t r = 0; r < kRows; ++r) {
      const Span s = span_of(g.keys[r], tile, count);
      if (bias) add_bias(*bias, g.i + r, tile, s, scale, score + r * kTile);
      online_softmax(score + r * kTile, s, bias ? 1.0f : scale, max[r], sum[r],
                     o + r * t.padded_value_dim, t.padded_value_dim);
    }
    add_weighted_rows(score, t.values + tile * t.padded_value_dim, count, t.padded_value_dim, o);
  }
  for (int64_t r = 0; r < g.rows; ++r) {
    const float inverse = sum[r] > 0.0f ? 1.0f / sum[r] : 0.0f * sum[r];
    float* out = row_out(p.o, t.first_row + g.i + r, g.head);
    for_lanes(t.value_dim, [&](int64_t d, int n) {
      store_some(out + d, load(o + r * t.padded_value_dim + d) * inverse, n);
    });
    p.lse[g.head * p.rows + t.first_row + g.i + r] = max[r] + std::log(sum[r]);
  }
}

/// P and d_score * scale_out of one tile, in place over the scores and the products d_o . v.
void score_gradients(float* score, float* product, const Span& s, float scale, float scale_out,
                     float lse, float delta) {
  for_span(s, [&](int64_t j, int n) {
    const Vf probability = first_lanes(vexp(load(score + j) * scale - lse), n);
    store(score + j, probability);
    store(product + j, probability * (load(product + j) - delta) * scale_out);
  });
  clear_outside(s, score);
  clear_outside(s, product);
}

void backward_group(const JaggedAttention& p, const Task& t, const Group& g, const BiasRows* bias,
                    const BackwardMemory& m, TimeSums& time) {
  const float* d_out_rows[kRows];
  float lse[kRows], delta[kRows];
  load_group(p, t, g, d_out_rows, m);
  for (int64_t r = 0; r < kRows; ++r) {
    const int64_t token = t.first_row + std::min(g.i + r, t.nq - 1);
    lse[r] = p.lse[g.head * p.rows + token];
    Vf total{};
    const float* o = row(p.o, token, g.head);
    for_lanes(t.value_dim, [&](int64_t d, int n) {
      total += load_some(o + d, n) * load_some(d_out_rows[r] + d, n);
    });
    delta[r] = reduce_add(total);
  }
  const auto scale = static_cast<float>(p.scale);
  for (int64_t tile = g.from; tile < g.to; tile += kTile) {
    const int64_t count = std::min(kTile, g.to - tile);
    outer_products(g.query, t.keys_t, t.padded_nk, t.dim, tile, count, m.score);
    outer_products(d_out_rows, t.values_t, t.padded_nk, t.value_dim, tile, count, m.product);
    for (int64_t r = 0; r < kRows; ++r) {
      const Span s = span_of(g.keys[r], tile, count);
      float *score = m.score + r * kTile, *product = m.product + r * kTile;
      if (!bias) {
        score_gradients(score, product, s, scale, scale, lse[r], delta[r]);
        continue;
      }
      add_bias(*bias, g.i + r, tile, s, scale, score);
      score_gradients(score, product, s, 1.0f, 1.0f, lse[r], delta[r]);
      add_bias_gradient(*bias, g.i + r, tile, s, product, time.sum);
      for_span(s, [&](int64_t j, int) { store(product + j, load(product + j) * scale); });
    }
    add_tile_gradients(t, tile, count, m);
  }
  store_d_query(p, t, g, m.d_query);
}

}  // namespace

void jagged_attention_forward_cpu(const JaggedAttention& p, int64_t begin, int64_t end) {
  Workspace workspace;
  for (int64_t index = begin; index < end; ++index) {
    const Task t = make_task(p, index, false, workspace);
    float* score = workspace.take(kRows * kTile);
    float* o = workspace.take(kRows * t.padded_value_dim);
    float* line = p.bias.any() ? workspace.take(t.nq + t.nk) : nullptr;
    for (int64_t head = t.first_head; head < t.first_head + t.heads; ++head) {
      BiasRows bias;
      if (line) bias = make_bias_rows(p, t, head, line);
      for (int64_t i = 0; i < t.nq; i += kRows)
        forward_group(p, t, make_group(p, t, head, i), line ? &bias : nullptr, score, o);
    }
  }
}

void jagged_attention_backward_cpu(const JaggedAttention& p, int64_t begin, int64_t end) {
  Workspace workspace;
  TimeSums time(p.bias);
  for (int64_t index = begin; index < end; ++index) {
    const Task t = make_task(p, index, true, workspace);
    const BackwardMemory m = take_backward_memory(t, p.bias.any(), workspace);
    for (int64_t head = t.first_head; head < t.first_head + t.heads; ++head) {
      BiasRows bias;
      if (m.line) bias = make_bias_rows(p, t, head, m.line);
      for (int64_t i = 0; i < t.nq; i += kRows)
        backward_group(p, t, make_group(p, t, head, i), m.line ? &bias : nullptr, m, time);
      if (bias.d_time) time.move_to(bias.d_time);
    }
    store_d_keys(p, t, m);
  }
}

void attention_bias_finish_cpu(const AttentionProblem& p, int64_t begin, int64_t end) {
  const AttentionBias& b = p.bias;
  const int64_t positions = position_tables(p);
  const int64_t width = std::max(2 * b.distances - 1, b.time_buckets);
  auto* sum = static_cast<double*>(std::malloc(std::max<int64_t>(1, width) * sizeof(double)));
  for (int64_t table = begin; table < end; ++table) {
    const bool position = table < positions;
    const int64_t index = position ? table : table - positions;
    const int64_t entries = position ? 2 * b.distances - 1 : b.time_buckets;
    const bool shared = (position ? b.position_stride : b.time_stride) == 0;
    std::fill_n(sum, entries, 0.0);
    for (int64_t s = 0; s < p.sequences; ++s) {
      for (int64_t head = shared ? 0 : index; head < (shared ? p.heads : index + 1); ++head) {
        if (!position) {
          const float* partial = b.time_partial + (head * p.sequences + s) * entries;
          for (int64_t n = 0; n < entries; ++n) sum[n] += partial[n];
          continue;
        }
        const int64_t nk = p.k_offsets[s + 1] - p.k_offsets[s], far = b.distances - 1;
        const int64_t nq = p.q_offsets ? p.q_offsets[s + 1] - p.q_offsets[s] : p.max_q;
        const int64_t row = p.q_offsets ? p.q_offsets[s] : s * nq;
        if (nq == 0 || nk == 0) continue;
        const float* partial =
            b.position_partial + head * (p.rows + p.k_tokens) + row + p.k_offsets[s];
        for (int64_t u = 0; u < nq + nk - 1; ++u)
          sum[far + clamp_to(nk - 1 - u, -far, far)] += partial[u];
      }
    }
    float* out =
        position ? b.d_position + index * b.position_stride : b.d_time + index * b.time_stride;
    for (int64_t n = 0; n < entries; ++n) out[n] = static_cast<float>(sum[n]);
  }
  std::free(sum);
}

void broadcast_query_finish_cpu(const float* partial, int64_t parts, int64_t columns, float* sum,
                                int64_t begin, int64_t end) {
  constexpr int64_t kColumns = 256;
  double total[kColumns];
  for (int64_t first = begin; first < end; first += kColumns) {
    const int64_t count = std::min(kColumns, end - first);
    std::fill_n(total, count, 0.0);
    for (int64_t s = 0; s < parts; ++s)
      for (int64_t c = 0; c < count; ++c) total[c] += partial[s * columns + first + c];
    for (int64_t c = 0; c < count; ++c) sum[first + c] = static_cast<float>(total[c]);
  }
}

}  // namespace tautline::kernels::TAUTLINE_ISA
