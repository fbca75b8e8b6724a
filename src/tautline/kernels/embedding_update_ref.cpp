#include <cmath>
#include <vector>

#include "tautline/kernels/embedding_update.h"

namespace tautline::kernels {
namespace {

double load(const void* data, Element type, int64_t index) {
  return with_element(
      type, [&](auto zero) { return to_float(static_cast<const decltype(zero)*>(data)[index]); });
}

void store(void* data, Element type, int64_t index, double value) {
  with_element(type, [&](auto zero) {
    using T = decltype(zero);
    static_cast<T*>(data)[index] = from_float<T>(static_cast<float>(value));
  });
}

}  // namespace

void sum_rows_ref(const RowGradients& g, const RowRuns& runs, double* sums) {
  for (int64_t u = 0; u < runs.count; ++u)
    for (int64_t c = 0; c < g.width; ++c) {
      double sum = 0;
      for (int64_t i = runs.starts[u]; i < runs.starts[u + 1]; ++i)
        sum += load(g.gradients, g.type, runs.order[i] * g.width + c);
      sums[u * g.width + c] = sum;
    }
}

void apply_row_ref(const RowUpdate& p, int64_t row, const double* sum) {
  const int64_t base = row * p.width;
  const double scale = p.scale, lr = p.lr;
  double root = 0;
  if (p.kind == RowUpdate::Kind::kRowwiseAdagrad) {
    double squares = 0;
    for (int64_t c = 0; c < p.width; ++c) squares += scale * sum[c] * scale * sum[c];
    const double state = p.state[row] + squares / static_cast<double>(p.width);
    p.state[row] = static_cast<float>(state);
    root = std::sqrt(state);
  }
  const double correct1 = 1 - std::pow(double{p.beta1}, static_cast<double>(p.step));
  const double correct2 = 1 - std::pow(double{p.beta2}, static_cast<double>(p.step));
  for (int64_t c = 0; c < p.width; ++c) {
    const double g = scale * sum[c];
    double change = lr * g;
    if (p.kind == RowUpdate::Kind::kRowwiseAdagrad) change /= root + p.eps;
    if (p.kind == RowUpdate::Kind::kAdam) {
      const double m = p.beta1 * double{p.moment1[base + c]} + (1 - p.beta1) * g;
      const double v = p.beta2 * double{p.moment2[base + c]} + (1 - p.beta2) * g * g;
      p.moment1[base + c] = static_cast<float>(m);
      p.moment2[base + c] = static_cast<float>(v);
      change = lr * (m / correct1) / (std::sqrt(v / correct2) + p.eps);
    }
    const double w = load(p.table, p.table_type, base + c);
    store(p.table, p.table_type, base + c, (1 - lr * p.decay) * w - change);
  }
}

}  // namespace tautline::kernels
