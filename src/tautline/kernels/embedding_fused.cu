// Row gradients straight into the table: sort, sum of each run, SGD or row-wise Adagrad, no sums
// stored.
#include <cstdio>

#include "tautline/kernels/embedding_apply.cuh"

namespace tautline::kernels {
namespace {

/// Any width: a warp a run; the sums are computed once for the state and once for the row.
template <class Table, class Gradient>
__global__ void update_any(DeviceRuns runs, const Gradient* gradients, int64_t width,
                           ApplySum<Table, 1, 4> apply) {
  const AnyRun run = any_run(runs);
  if (!run.valid) return;
  const auto sum = [&](int64_t c) {
    return sum_column(runs, gradients, width, run.start, run.length, c);
  };
  const float rate = any_rate(apply, run.row, width, sum);
  for (int64_t c = threadIdx.x % kWarp; c < width; c += kWarp) {
    const int64_t at = run.row * width + c;
    apply.table[at] = from_float<Table>(
        fmaf(-rate, apply.scale * sum(c), apply.keep * to_float(apply.table[at])));
  }
}

template <class Table, class Gradient, int V>
void launch(const DeviceRuns& runs, const RowUpdate& p, const RowGradients& g) {
  with_layout<V>(g.width, [&](auto layout) {
    using L = decltype(layout);
    launch_runs<Gradient, L::kLanes, L::kChunks, V>(runs, g, apply_of<Table, L::kChunks, V>(p));
  });
}

/// Rows of 16-bit gradients and a 16-bit table can be read eight columns at a time.
bool eights_fit(const RowUpdate& p, const RowGradients& g) {
  return g.width <= kLayoutColumns && packs_fit(g.gradients, g.type, g.width, 8) &&
         packs_fit(p.table, p.table_type, g.width, 8);
}

}  // namespace

void update_rows_cuda(const RowUpdate& p, const RowGradients& g, void* workspace) {
  TAUTLINE_INVARIANT(p.kind != RowUpdate::Kind::kAdam, "lazy Adam has no fused form on CUDA");
  if (g.count == 0 || g.width == 0) return;
  const bool fits = g.width <= kLayoutColumns && packs_fit(g.gradients, g.type, g.width) &&
                    packs_fit(p.table, p.table_type, g.width);
  const DeviceRuns runs = make_runs(g, workspace, fits);
  with_element(p.table_type, [&](auto table_zero) {
    with_element(g.type, [&](auto gradient_zero) {
      using Table = decltype(table_zero);
      using Gradient = decltype(gradient_zero);
      if constexpr (sizeof(Table) == 2 && sizeof(Gradient) == 2)
        if (eights_fit(p, g)) return launch<Table, Gradient, 8>(runs, p, g);
      if (fits) return launch<Table, Gradient, 4>(runs, p, g);
      constexpr int64_t kWarps = kUpdateThreads / kWarp;
      update_any<<<static_cast<unsigned>(divide_up(g.count, kWarps)), kUpdateThreads, 0,
                   stream_of(g.stream)>>>(runs, static_cast<const Gradient*>(g.gradients), g.width,
                                          apply_of<Table, 1, 4>(p));
      check_launch("update of rows");
    });
  });
}

}  // namespace tautline::kernels
