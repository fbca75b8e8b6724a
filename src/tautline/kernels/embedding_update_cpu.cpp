#include <cmath>

#include "tautline/kernels/embedding_update.h"
#include "tautline/kernels/rows_cpu.h"

namespace tautline::kernels::TAUTLINE_ISA {
namespace {

/// Gradients are read in the order of rows, at random for the memory: those of the positions to
/// come, of this run and the next ones, are asked for early. `end`: of all positions.
template <class T>
void prefetch_gradient(const RowGradients& g, const int64_t* position, const int64_t* end) {
  if (position + kPrefetchAhead < end)
    prefetch_row(reinterpret_cast<const char*>(static_cast<const T*>(g.gradients) +
                                               position[kPrefetchAhead] * g.width),
                 g.width * static_cast<int64_t>(sizeof(T)));
}

/// sum[c] of the columns [c0, c0 + width) of n gradients at `positions`, as the header orders it.
template <class T>
void sum_columns(const RowGradients& g, const int64_t* positions, int64_t n, const int64_t* end,
                 int64_t c0, int64_t width, float* sum) {
  const T* gradients = static_cast<const T*>(g.gradients) + c0;
  const auto zero = [width](float* out) {
    for (int64_t i = 0; i < width; ++i) out[i] = 0;
  };
  const auto sum_piece = [&](int64_t first, float* out) {
    zero(out);
    const int64_t last = first + kSumPiece < n ? first + kSumPiece : n;
    for (int64_t i = first; i < last; ++i) {
      if (c0 == 0) prefetch_gradient<T>(g, positions + i, end);
      load_row<true>(gradients + positions[i] * g.width, width, out);
    }
  };
  if (n <= kSumPiece) return sum_piece(0, sum);
  float strand[kColumnBlock], piece[kColumnBlock];
  zero(sum);
  for (int64_t j = 0; j < kSumStrands && j * kSumPiece < n; ++j) {
    zero(strand);
    for (int64_t first = j * kSumPiece; first < n; first += kSumPiece * kSumStrands) {
      sum_piece(first, piece);
      load_row<true>(piece, width, strand);
    }
    load_row<true>(strand, width, sum);
  }
}

template <class T>
void sum_run(const RowGradients& g, const RowRuns& runs, int64_t u, float* sum) {
  const int64_t first = runs.starts[u], n = runs.starts[u + 1] - first;
  const int64_t* end = runs.order + runs.starts[runs.count];
  for (int64_t c = 0; c < g.width; c += kColumnBlock)
    sum_columns<T>(g, runs.order + first, n, end, c,
                   g.width - c < kColumnBlock ? g.width - c : kColumnBlock, sum + c);
}

/// sum of (scale sum_c)^2 in 16 partial sums, so that it vectorises and is the same in v3 and v4.
float sum_of_squares(const float* sum, float scale, int64_t width) {
  float part[16] = {};
  int64_t c = 0;
  for (; c + 16 <= width; c += 16)
    for (int i = 0; i < 16; ++i) {
      const float g = scale * sum[c + i];
      part[i] = std::fma(g, g, part[i]);
    }
  for (; c < width; ++c) {
    const float g = scale * sum[c];
    part[c % 16] = std::fma(g, g, part[c % 16]);
  }
  float total = 0;
  for (const float value : part) total += value;
  return total;
}

/// The constants of one call.
struct Factors {
  float keep, rate;          // w <- keep w - rate x
  float correct1, correct2;  // Adam: 1 / (1 - beta^t)
};

Factors factors(const RowUpdate& p) {
  Factors f{1.0f - p.lr * p.decay, p.lr, 1, 1};
  if (p.kind == RowUpdate::Kind::kAdam) {
    const auto t = static_cast<double>(p.step);
    f.correct1 = static_cast<float>(1 / (1 - std::pow(double{p.beta1}, t)));
    f.correct2 = static_cast<float>(1 / (1 - std::pow(double{p.beta2}, t)));
  }
  return f;
}

template <class T>
void step_row(T* row, const float* direction, int64_t width, float keep, float rate) {
  float block[kColumnBlock];
  for (int64_t c0 = 0; c0 < width; c0 += kColumnBlock) {
    const int64_t n = width - c0 < kColumnBlock ? width - c0 : kColumnBlock;
    load_row<false>(row + c0, n, block);
    for (int64_t i = 0; i < n; ++i) block[i] = keep * block[i] - rate * direction[c0 + i];
    store_row(block, n, row + c0);
  }
}

/// sum -> Adam's direction, in place.
void adam_direction(const RowUpdate& p, const Factors& f, int64_t row, float* sum) {
  float* m = p.moment1 + row * p.width;
  float* v = p.moment2 + row * p.width;
  for (int64_t c = 0; c < p.width; ++c) {
    const float g = p.scale * sum[c];
    m[c] = p.beta1 * m[c] + (1 - p.beta1) * g;
    v[c] = p.beta2 * v[c] + (1 - p.beta2) * g * g;
    sum[c] = m[c] * f.correct1 / (std::sqrt(v[c] * f.correct2) + p.eps);
  }
}

/// `sum` may be overwritten.
template <class T>
void apply_row(const RowUpdate& p, const Factors& f, int64_t row, float* sum) {
  T* values = static_cast<T*>(p.table) + row * p.width;
  switch (p.kind) {
    case RowUpdate::Kind::kSgd:
      return step_row(values, sum, p.width, f.keep, f.rate * p.scale);
    case RowUpdate::Kind::kRowwiseAdagrad: {
      const float squares = sum_of_squares(sum, p.scale, p.width);
      const float state = p.state[row] + squares / static_cast<float>(p.width);
      p.state[row] = state;
      const float rate = f.rate / (std::sqrt(state) + p.eps) * p.scale;
      return step_row(values, sum, p.width, f.keep, rate);
    }
    case RowUpdate::Kind::kAdam:
      adam_direction(p, f, row, sum);
      return step_row(values, sum, p.width, f.keep, f.rate);
  }
}

void prefetch_table(const RowUpdate& p, const int64_t* rows, int64_t u, int64_t end) {
  if (u + kPrefetchAhead >= end) return;
  const int64_t row = rows[u + kPrefetchAhead], bytes = p.width * element_bytes(p.table_type);
  prefetch_row(static_cast<const char*>(p.table) + row * bytes, bytes);
  if (p.state != nullptr) __builtin_prefetch(p.state + row);
}

}  // namespace

void sum_rows_cpu(const RowGradients& g, const RowRuns& runs, float* sums, int64_t begin,
                  int64_t end) {
  with_element(g.type, [&](auto type) {
    for (int64_t u = begin; u < end; ++u) sum_run<decltype(type)>(g, runs, u, sums + u * g.width);
  });
}

void apply_rows_cpu(const RowUpdate& p, const int64_t* rows, const float* sums, int64_t begin,
                    int64_t end) {
  const Factors f = factors(p);
  auto* sum = static_cast<float*>(__builtin_alloca(static_cast<size_t>(p.width) * sizeof(float)));
  with_element(p.table_type, [&](auto type) {
    for (int64_t u = begin; u < end; ++u) {
      prefetch_table(p, rows, u, end);
      load_row<false>(sums + u * p.width, p.width, sum);
      apply_row<decltype(type)>(p, f, rows[u], sum);
    }
  });
}

void update_rows_cpu(const RowUpdate& p, const RowGradients& g, const RowRuns& runs, int64_t begin,
                     int64_t end) {
  const Factors f = factors(p);
  auto* sum = static_cast<float*>(__builtin_alloca(static_cast<size_t>(p.width) * sizeof(float)));
  with_element(p.table_type, [&](auto table_type) {
    with_element(g.type, [&](auto gradient_type) {
      for (int64_t u = begin; u < end; ++u) {
        prefetch_table(p, runs.rows, u, end);
        sum_run<decltype(gradient_type)>(g, runs, u, sum);
        apply_row<decltype(table_type)>(p, f, runs.rows[u], sum);
      }
    });
  });
}

}  // namespace tautline::kernels::TAUTLINE_ISA
