// The specification of block_attention.h: plain loops in double. Tests only.
#include <cmath>

#include "tautline/kernels/attention_ref.h"
#include "tautline/kernels/block_attention.h"

namespace tautline::kernels {

using namespace reference;

namespace {

/// Every head of every token turned by the token's position times `direction`, in place.
void turn(const BlockAttention& p, Doubles& x, double direction) {
  if (p.rope == RopeLayout::kNone) return;
  const int64_t half = p.head_dim / 2;
  for (int64_t b = 0; b < p.sequences; ++b)
    for (int64_t t = p.offsets[b]; t < p.offsets[b + 1]; ++t)
      for (int64_t c = 0; c < half; ++c) {
        const double angle = direction * static_cast<double>(t - p.offsets[b]) *
                             std::pow(p.rope_base, -2.0 * c / p.head_dim);
        const double cosine = std::cos(angle), sine = std::sin(angle);
        for (int64_t h = 0; h < x.heads; ++h) {
          double& first = x.row(t, h)[p.rope == RopeLayout::kInterleaved ? 2 * c : c];
          double& second = x.row(t, h)[p.rope == RopeLayout::kInterleaved ? 2 * c + 1 : c + half];
          const double was = first;
          first = was * cosine - second * sine;
          second = second * cosine + was * sine;
        }
      }
}

Doubles load(const BlockAttention& p, const HeadsView& view, int64_t heads) {
  Doubles x{p.tokens, heads, p.head_dim};
  for (int64_t t = 0; t < p.tokens; ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t d = 0; d < p.head_dim; ++d) x.row(t, h)[d] = at(view, t, h, d);
  return x;
}

double product(const double* a, const double* b, int64_t dim) {
  double total = 0;
  for (int64_t d = 0; d < dim; ++d) total += a[d] * b[d];
  return total;
}

struct Turned {
  explicit Turned(const BlockAttention& p)
      : q(load(p, p.q, p.heads)), k(load(p, p.k, p.kv_heads)), v(load(p, p.v, p.kv_heads)) {
    turn(p, q, 1);
    turn(p, k, 1);
    if (p.rotate_values) turn(p, v, 1);
  }
  Doubles q, k, v;
};

/// Calls row(i, head, kv_head, first, probability) with token i's probabilities over tokens first,
/// first + 1, ...
template <class Row>
void for_each_row(const BlockAttention& p, Turned& x, Row&& row) {
  for (int64_t b = 0; b < p.sequences; ++b)
    for (int64_t i = p.offsets[b]; i < p.offsets[b + 1]; ++i)
      for (int64_t head = 0; head < p.heads; ++head) {
        const int64_t kv_head = head / (p.heads / p.kv_heads);
        const int64_t first = i - (i - p.offsets[b]) % kAttentionBlock;
        const int64_t last = p.causal ? i + 1 : std::min(first + kAttentionBlock, p.offsets[b + 1]);
        std::vector<double> probability;
        double max = -INFINITY, sum = 0;
        for (int64_t j = first; j < last; ++j) {
          probability.push_back(p.scale *
                                product(x.q.row(i, head), x.k.row(j, kv_head), p.head_dim));
          max = std::max(max, probability.back());
        }
        for (double& s : probability) sum += s = std::exp(s - max);
        for (double& s : probability) s /= sum;
        row(i, head, kv_head, first, probability);
      }
}

}  // namespace

void block_attention_forward_ref(const BlockAttention& p) {
  Turned x(p);
  Doubles o{p.tokens, p.heads, p.head_dim};
  for_each_row(p, x, [&](int64_t i, int64_t head, int64_t kv_head, int64_t first, const auto& w) {
    for (size_t n = 0; n < w.size(); ++n)
      for (int64_t d = 0; d < p.head_dim; ++d)
        o.row(i, head)[d] += w[n] * x.v.row(first + static_cast<int64_t>(n), kv_head)[d];
  });
  o.store(p.o);
}

void block_attention_backward_ref(const BlockAttention& p) {
  Turned x(p);
  Doubles d_o = load(p, p.d_o, p.heads);
  Doubles d_q{p.tokens, p.heads, p.head_dim}, d_k{p.tokens, p.kv_heads, p.head_dim},
      d_v{p.tokens, p.kv_heads, p.head_dim};
  for_each_row(p, x, [&](int64_t i, int64_t head, int64_t kv_head, int64_t first, const auto& w) {
    const auto d_weight = [&](size_t n) {
      return product(d_o.row(i, head), x.v.row(first + static_cast<int64_t>(n), kv_head),
                     p.head_dim);
    };
    double delta = 0;
    for (size_t n = 0; n < w.size(); ++n) delta += w[n] * d_weight(n);
    for (size_t n = 0; n < w.size(); ++n) {
      const int64_t j = first + static_cast<int64_t>(n);
      const double d_score = w[n] * (d_weight(n) - delta) * p.scale;
      for (int64_t d = 0; d < p.head_dim; ++d) {
        d_q.row(i, head)[d] += d_score * x.k.row(j, kv_head)[d];
        d_k.row(j, kv_head)[d] += d_score * x.q.row(i, head)[d];
        d_v.row(j, kv_head)[d] += w[n] * d_o.row(i, head)[d];
      }
    }
  });
  turn(p, d_q, -1);
  turn(p, d_k, -1);
  if (p.rotate_values) turn(p, d_v, -1);
  d_q.store(p.d_q);
  d_k.store(p.d_k);
  d_v.store(p.d_v);
}

}  // namespace tautline::kernels
