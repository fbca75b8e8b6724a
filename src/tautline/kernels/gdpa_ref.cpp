// The specification of gdpa.h: plain loops in double. Tests only.
#include <cmath>

#include "tautline/kernels/attention_ref.h"
#include "tautline/kernels/gdpa.h"

namespace tautline::kernels {

using namespace reference;

namespace {

struct Activated {
  double value, slope;
};

Activated activate(ScoreActivation f, double x) {
  switch (f) {
    case ScoreActivation::kIdentity:
      return {x, 1};
    case ScoreActivation::kRelu:
      return {x > 0 ? x : 0, x > 0 ? 1.0 : 0.0};
    case ScoreActivation::kSquaredRelu:
      return {x > 0 ? x * x : 0, x > 0 ? 2 * x : 0};
    case ScoreActivation::kSilu: {
      const double s = 1 / (1 + std::exp(-x));
      return {x * s, s + x * s * (1 - s)};
    }
    case ScoreActivation::kGelu: {
      const double cdf = 0.5 * std::erfc(-x * std::sqrt(0.5));
      return {x * cdf, cdf + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI)};
    }
    case ScoreActivation::kGeluTanh: {
      const double c = std::sqrt(2 / M_PI), t = std::tanh(c * (x + 0.044715 * x * x * x));
      const double d_inner = c * (1 + 3 * 0.044715 * x * x);
      return {0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * d_inner};
    }
    case ScoreActivation::kLeakyRelu:
      return {x > 0 ? x : 0.01 * x, x > 0 ? 1 : 0.01};
    case ScoreActivation::kHardSwish:
      if (x <= -3) return {0, 0};
      if (x >= 3) return {x, 1};
      return {x * (x + 3) / 6, x / 3 + 0.5};
  }
  return {};
}

double score(const Gdpa& p, const Sequence& s, int64_t head, int64_t i, int64_t j) {
  return p.alpha *
             dot(p.q, s.q + i, head, p.k, s.k + j, head / (p.heads / p.kv_heads), p.head_dim) +
         bias(p, s, head, i, j);
}

}  // namespace

void gdpa_forward_ref(const Gdpa& p) {
  Doubles o{p.rows, p.heads, p.value_dim};
  for_each_pair(p, [&](const Sequence& s, int64_t head, int64_t i, int64_t j) {
    const double weight = p.beta * activate(p.activation, score(p, s, head, i, j)).value;
    for (int64_t d = 0; d < p.value_dim; ++d)
      o.row(s.row + i, head)[d] += weight * at(p.v, s.k + j, head / (p.heads / p.kv_heads), d);
  });
  o.store(p.o);
}

void gdpa_backward_ref(const Gdpa& p) {
  Gradients gradients(p);
  for_each_pair(p, [&](const Sequence& s, int64_t head, int64_t i, int64_t j) {
    const Activated f = activate(p.activation, score(p, s, head, i, j));
    const double d_weight = p.beta * dot(p.d_o, s.row + i, head, p.v, s.k + j,
                                         head / (p.heads / p.kv_heads), p.value_dim);
    gradients.add(s, head, i, j, p.beta * f.value, f.slope * d_weight, p.alpha);
  });
  gradients.store();
}

}  // namespace tautline::kernels
