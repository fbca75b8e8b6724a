#include <cstdio>

#include "tautline/kernels/embedding_update.cuh"

namespace tautline::kernels {
namespace {

template <class Gradient>
__global__ void coalesce_any(DeviceRuns runs, const Gradient* gradients, int64_t width,
                             int64_t* rows, float* sums) {
  const AnyRun run = any_run(runs);
  if (!run.valid) return;
  if (threadIdx.x % kWarp == 0) rows[run.run] = run.row;
  for (int64_t c = threadIdx.x % kWarp; c < width; c += kWarp)
    sums[run.run * width + c] = sum_column(runs, gradients, width, run.start, run.length, c);
}

__global__ void write_count(const RunCounts* counts, int64_t* distinct) {
  *distinct = counts->runs;
}

}  // namespace

void coalesce_cuda(const RowGradients& g, int64_t* rows, float* sums, int64_t* distinct,
                   void* workspace) {
  const cudaStream_t stream = stream_of(g.stream);
  if (g.count == 0) {
    check_cuda(cudaMemsetAsync(distinct, 0, sizeof(int64_t), stream), "clearing a count");
    return;
  }
  const bool fits = g.width <= kLayoutColumns && packs_fit(g.gradients, g.type, g.width) &&
                    packs_fit(sums, Element::kFloat32, g.width);
  const DeviceRuns runs = make_runs(g, workspace, fits);
  write_count<<<1, 1, 0, stream>>>(runs.counts, distinct);
  with_element(g.type, [&](auto zero) {
    using Gradient = decltype(zero);
    if (fits)
      return with_layout(g.width, [&](auto layout) {
        using L = decltype(layout);
        launch_runs<Gradient, L::kLanes, L::kChunks, 4>(runs, g,
                                                        StoreSums<L::kChunks, 4>{rows, sums});
      });
    constexpr int64_t kWarps = kUpdateThreads / kWarp;
    coalesce_any<<<static_cast<unsigned>(divide_up(g.count, kWarps)), kUpdateThreads, 0, stream>>>(
        runs, static_cast<const Gradient*>(g.gradients), g.width, rows, sums);
    check_launch("coalesce");
  });
}

}  // namespace tautline::kernels
