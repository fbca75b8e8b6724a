// What the optimisers of rows share between sums that are stored (embedding_apply.cu) and sums that
// never are (embedding_fused.cu), so that both give the same bits.
#pragma once

#include "tautline/kernels/embedding_update.cuh"

namespace tautline::kernels {

template <class Table, int C, int V>
ApplySum<Table, C, V> apply_of(const RowUpdate& p) {
  return {static_cast<Table*>(p.table),
          p.kind == RowUpdate::Kind::kRowwiseAdagrad ? p.state : nullptr,
          1.0f - p.lr * p.decay,
          p.lr,
          p.eps,
          p.scale};
}

/// Row-wise Adagrad for any width, by a warp: reads sum(c) for its columns, moves the state,
/// returns the rate. Without a state: the learning rate.
template <class Table, class Sum>
__device__ float any_rate(const ApplySum<Table, 1, 4>& apply, int64_t row, int64_t width,
                          const Sum& sum) {
  if (apply.state == nullptr) return apply.lr;
  float squares = 0;
  for (int64_t c = threadIdx.x % kWarp; c < width; c += kWarp) {
    const float g = apply.scale * sum(c);
    squares = fmaf(g, g, squares);
  }
  const float next = apply.state[row] + group_sum<kWarp>(squares) / static_cast<float>(width);
  __syncwarp();
  if (threadIdx.x % kWarp == 0) apply.state[row] = next;
  return adagrad_rate(apply.lr, next, apply.eps);
}

}  // namespace tautline::kernels
