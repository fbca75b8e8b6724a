// The specification of attention.h: plain loops in double. Tests only.
#include "tautline/kernels/attention_ref.h"

#include <cmath>
#include <limits>

#include "tautline/kernels/attention.h"

namespace tautline::kernels {

using namespace reference;

namespace {
double score(const JaggedAttention& p, const Sequence& s, int64_t head, int64_t i, int64_t j) {
  return p.scale *
             dot(p.q, s.q + i, head, p.k, s.k + j, head / (p.heads / p.kv_heads), p.head_dim) +
         bias(p, s, head, i, j);
}
}  // namespace

void jagged_attention_forward_ref(const JaggedAttention& p) {
  std::vector<double> max(p.heads * p.rows, -std::numeric_limits<double>::infinity());
  std::vector<double> sum(p.heads * p.rows);
  for_each_pair(p, [&](const Sequence& s, int64_t head, int64_t i, int64_t j) {
    double& m = max[head * p.rows + s.row + i];
    m = std::max(m, score(p, s, head, i, j));
  });
  Doubles o{p.rows, p.heads, p.value_dim};
  for_each_pair(p, [&](const Sequence& s, int64_t head, int64_t i, int64_t j) {
    const int64_t row = s.row + i;
    const double e = std::exp(score(p, s, head, i, j) - max[head * p.rows + row]);
    sum[head * p.rows + row] += e;
    for (int64_t d = 0; d < p.value_dim; ++d)
      o.row(row, head)[d] += e * at(p.v, s.k + j, head / (p.heads / p.kv_heads), d);
  });
  for (int64_t head = 0; head < p.heads; ++head)
    for (int64_t row = 0; row < p.rows; ++row) {
      const double total = sum[head * p.rows + row];
      if (total > 0)
        for (int64_t d = 0; d < p.value_dim; ++d) o.row(row, head)[d] /= total;
      p.lse[head * p.rows + row] = static_cast<float>(max[head * p.rows + row] + std::log(total));
    }
  o.store(p.o);
}

// P = exp(score - lse), dP = d_o v, d_score = P (dP - d_o . o).
void jagged_attention_backward_ref(const JaggedAttention& p) {
  Gradients gradients(p);
  for_each_pair(p, [&](const Sequence& s, int64_t head, int64_t i, int64_t j) {
    const int64_t row = s.row + i;
    const double weight = std::exp(score(p, s, head, i, j) - p.lse[head * p.rows + row]);
    const double d_weight =
        dot(p.d_o, row, head, p.v, s.k + j, head / (p.heads / p.kv_heads), p.value_dim);
    const double delta = dot(p.d_o, row, head, p.o, row, head, p.value_dim);
    gradients.add(s, head, i, j, weight, weight * (d_weight - delta), p.scale);
  });
  gradients.store();
}

}  // namespace tautline::kernels
