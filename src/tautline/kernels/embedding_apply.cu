// Optimisers over distinct rows and their sums: a group of lanes a row.
#include <cmath>
#include <cstdio>

#include "tautline/kernels/embedding_apply.cuh"

namespace tautline::kernels {
namespace {

constexpr int kThreads = 256;

struct Adam {
  float *moment1, *moment2;
  float beta1, beta2, correct1, correct2, eps;  // correct: 1 / (1 - beta^t)
  __device__ float direction(float g, float& m, float& v) const {
    m = fmaf(beta1, m, (1 - beta1) * g);
    v = fmaf(beta2, v, (1 - beta2) * g * g);
    return m * correct1 / (sqrtf(v * correct2) + eps);
  }
};

__device__ bool is_row(int64_t u, int64_t count, const int64_t* distinct) {
  return u < (distinct == nullptr ? count : *distinct);
}

template <int G, int C, class Table>
__global__ void __launch_bounds__(kThreads)
    apply_sums(const int64_t* rows, const float* __restrict__ sums, int64_t count,
               const int64_t* distinct, int64_t table_rows, int width,
               ApplySum<Table, C, 4> apply) {
  const RowLayout<G, C> layout(width);
  const int64_t u = int64_t{blockIdx.x} * (kThreads / G) + threadIdx.x / G;
  const bool active = is_row(u, count, distinct);
  const int64_t row = active ? rows[u] : 0;
  if (row < 0 || row >= table_rows) bad_row(row, u, table_rows);
  const auto held = apply.load(layout, static_cast<uint32_t>(row), active);
  Quad sum[C];
#pragma unroll
  for (int c = 0; c < C; ++c)
    sum[c] = active && layout.holds(c)
                 ? load_quad<Reuse::kOnce>(sums + u * width + layout.column(c))
                 : zero_pack();
  apply.finish(layout, 0, static_cast<uint32_t>(row), active, sum, held);
}

template <int G, int C, class Table>
__global__ void __launch_bounds__(kThreads)
    apply_adam(const int64_t* rows, const float* __restrict__ sums, int64_t count,
               const int64_t* distinct, int64_t table_rows, int width, ApplySum<Table, C, 4> apply,
               Adam adam) {
  const RowLayout<G, C> layout(width);
  const int64_t u = int64_t{blockIdx.x} * (kThreads / G) + threadIdx.x / G;
  if (!is_row(u, count, distinct)) return;
  const int64_t row = rows[u];
  if (row < 0 || row >= table_rows) bad_row(row, u, table_rows);
#pragma unroll
  for (int c = 0; c < C; ++c) {
    if (!layout.holds(c)) continue;
    const int64_t at = row * width + layout.column(c);
    const Quad g = load_quad<Reuse::kOnce>(sums + u * width + layout.column(c));
    Quad w = load_quad<Reuse::kOnce>(apply.table + at);
    Quad m = load_quad<Reuse::kOnce>(adam.moment1 + at),
         v = load_quad<Reuse::kOnce>(adam.moment2 + at);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      w.v[i] = fmaf(-apply.lr, adam.direction(apply.scale * g.v[i], m.v[i], v.v[i]),
                    apply.keep * w.v[i]);
    store_quad<Reuse::kOnce>(apply.table + at, w);
    store_quad<Reuse::kOnce>(adam.moment1 + at, m);
    store_quad<Reuse::kOnce>(adam.moment2 + at, v);
  }
}

/// Any width: a warp a row.
template <class Table>
__global__ void apply_any(const int64_t* rows, const float* sums, int64_t count,
                          const int64_t* distinct, int64_t table_rows, int64_t width,
                          ApplySum<Table, 1, 4> apply, Adam adam) {
  const int64_t u = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (!is_row(u, count, distinct)) return;
  const int64_t row = rows[u];
  if (row < 0 || row >= table_rows) bad_row(row, u, table_rows);
  const float rate = any_rate(apply, row, width, [&](int64_t c) { return sums[u * width + c]; });
  for (int64_t c = threadIdx.x % kWarp; c < width; c += kWarp) {
    const int64_t at = row * width + c;
    float g = apply.scale * sums[u * width + c];
    if (adam.moment1 != nullptr) g = adam.direction(g, adam.moment1[at], adam.moment2[at]);
    apply.table[at] = from_float<Table>(fmaf(-rate, g, apply.keep * to_float(apply.table[at])));
  }
}

Adam adam_of(const RowUpdate& p) {
  if (p.kind != RowUpdate::Kind::kAdam) return {};
  const auto t = static_cast<double>(p.step);
  return {p.moment1,
          p.moment2,
          p.beta1,
          p.beta2,
          static_cast<float>(1 / (1 - std::pow(double{p.beta1}, t))),
          static_cast<float>(1 / (1 - std::pow(double{p.beta2}, t))),
          p.eps};
}

}  // namespace

void apply_rows_cuda(const RowUpdate& p, const int64_t* rows, const float* sums, int64_t count,
                     const int64_t* distinct) {
  if (count == 0 || p.width == 0) return;
  const cudaStream_t stream = stream_of(p.stream);
  const Adam adam = adam_of(p);
  const bool fits = p.width <= kLayoutColumns && packs_fit(p.table, p.table_type, p.width) &&
                    packs_fit(sums, Element::kFloat32, p.width) && p.table_rows < 0xffffffff &&
                    packs_fit(p.moment1, Element::kFloat32, p.width) &&
                    packs_fit(p.moment2, Element::kFloat32, p.width);
  with_element(p.table_type, [&](auto zero) {
    using Table = decltype(zero);
    if (!fits) {
      constexpr int64_t kWarps = kThreads / kWarp;
      apply_any<<<static_cast<unsigned>(divide_up(count, kWarps)), kThreads, 0, stream>>>(
          rows, sums, count, distinct, p.table_rows, p.width, apply_of<Table, 1, 4>(p), adam);
      return;
    }
    with_layout(p.width, [&](auto layout) {
      constexpr int G = decltype(layout)::kLanes, C = decltype(layout)::kChunks;
      const auto blocks = static_cast<unsigned>(divide_up(count, int64_t{kThreads / G}));
      const auto apply = apply_of<Table, C, 4>(p);
      if (adam.moment1 != nullptr)
        apply_adam<G, C><<<blocks, kThreads, 0, stream>>>(rows, sums, count, distinct, p.table_rows,
                                                          static_cast<int>(p.width), apply, adam);
      else
        apply_sums<G, C><<<blocks, kThreads, 0, stream>>>(rows, sums, count, distinct, p.table_rows,
                                                          static_cast<int>(p.width), apply);
    });
  });
  check_launch("optimiser of rows");
}

}  // namespace tautline::kernels
