// Sum of a run of gradients and what becomes of it, for rows that a RowLayout holds in registers.
// Three kernels: sums of the pieces of long runs; then in one grid the long runs (a block each) and
// all other runs (a warp takes 32: their starts, rows and first two positions are read at once,
// then several runs' gradients and table rows are under way together).
#pragma once

#include "tautline/kernels/embedding_runs.cuh"
#include "tautline/kernels/rows.cuh"

namespace tautline::kernels {

constexpr int kUpdateThreads = 256;

/// lr / (sqrt(state) + eps) to 3 units in the last place: the exact forms took a tenth of the
/// kernel's instructions, and instructions bound narrow rows.
__device__ __forceinline__ float adagrad_rate(float lr, float state, float eps) {
  float root;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(state));
  return __fdividef(lr, root + eps);
}

/// Writes rows and sums: coalesce.
template <int C, int V>
struct StoreSums {
  int64_t* rows;
  float* sums;
  struct Held {};
  template <int G>
  __device__ Held load(const RowLayout<G, C, V>&, uint32_t, bool) const {
    return {};
  }
  template <int G>
  __device__ void finish(const RowLayout<G, C, V>& layout, uint32_t run, uint32_t row, bool active,
                         const Pack<V> (&sum)[C], const Held&) const {
    if (!active) return;
    if (layout.lane == 0) rows[run] = row;
#pragma unroll
    for (int c = 0; c < C; ++c)
      if (layout.holds(c))
        store_pack(sums + int64_t{run} * layout.width + layout.column(c), sum[c]);
  }
};

/// SGD or row-wise Adagrad (state not null): w <- keep w - rate g.
template <class Table, int C, int V>
struct ApplySum {
  Table* table;
  float* state;
  float keep, lr, eps, scale;
  struct Held {
    Raw<Table, V> row[C];
    float state;
  };
  template <int G>
  __device__ Held load(const RowLayout<G, C, V>& layout, uint32_t row, bool active) const {
    Held held;
    held.state = active && state != nullptr ? state[row] : 0.f;
#pragma unroll
    for (int c = 0; c < C; ++c)
      held.row[c] =
          active && layout.holds(c)
              ? load_raw<V, Reuse::kOnce>(table + int64_t{row} * layout.width + layout.column(c))
              : zero_raw<Table, V>();
    return held;
  }
  template <int G>
  __device__ void finish(const RowLayout<G, C, V>& layout, uint32_t, uint32_t row, bool active,
                         const Pack<V> (&sum)[C], const Held& held) const {
    float rate = lr;
    if (state != nullptr) {
      float squares[C];
#pragma unroll
      for (int c = 0; c < C; ++c) {
        float quad[V / 4];  // whatever V is, the same tree over quads of columns
#pragma unroll
        for (int q = 0; q < V / 4; ++q) {
          quad[q] = 0;
#pragma unroll
          for (int i = 4 * q; i < 4 * q + 4; ++i) {
            const float g = scale * sum[c].v[i];
            quad[q] = fmaf(g, g, quad[q]);
          }
        }
        squares[c] = group_sum<G>(V == 8 ? quad[0] + quad[V / 4 - 1] : quad[0]);
      }
#pragma unroll
      for (int step = 1; step < C; step *= 2)
#pragma unroll
        for (int c = 0; c + step < C; c += 2 * step) squares[c] += squares[c + step];
      const float next = held.state + __fdividef(squares[0], static_cast<float>(layout.width));
      if (active && layout.lane == 0) state[row] = next;
      rate = adagrad_rate(lr, next, eps);
    }
    if (!active) return;
#pragma unroll
    for (int c = 0; c < C; ++c) {
      if (!layout.holds(c)) continue;
      Pack<V> out = pack_of(held.row[c]);
#pragma unroll
      for (int i = 0; i < V; ++i) out.v[i] = fmaf(-rate, scale * sum[c].v[i], keep * out.v[i]);
      store_pack<Reuse::kOnce>(table + int64_t{row} * layout.width + layout.column(c), out);
    }
  }
};

/// Adds the gradients at positions order[first .. first + n) to `sum`, kFlight rows under way.
template <int kFlight, class Gradient, int G, int C, int V>
__device__ __forceinline__ void add_gradients(const RowLayout<G, C, V>& layout,
                                              const Gradient* __restrict__ gradients,
                                              const uint32_t* __restrict__ order, uint32_t n,
                                              Pack<V> (&sum)[C]) {
  for (uint32_t i = 0; i < n; i += kFlight) {
    uint32_t position[kFlight];
#pragma unroll
    for (int f = 0; f < kFlight; ++f) position[f] = i + f < n ? order[i + f] : 0;
    Raw<Gradient, V> value[kFlight][C];
#pragma unroll
    for (int f = 0; f < kFlight; ++f)
#pragma unroll
      for (int c = 0; c < C; ++c)
        value[f][c] = i + f < n && layout.holds(c)
                          ? load_raw<V, Reuse::kOnce>(
                                gradients + int64_t{position[f]} * layout.width + layout.column(c))
                          : zero_raw<Gradient, V>();
#pragma unroll
    for (int f = 0; f < kFlight; ++f)
#pragma unroll
      for (int c = 0; c < C; ++c) add(sum[c], pack_of(value[f][c]));  // adding +0 changes no bit
  }
}

template <class Gradient, int G, int C, int V>
__global__ void __launch_bounds__(kUpdateThreads)
    sum_pieces(DeviceRuns runs, const Gradient* __restrict__ gradients, int width) {
  const RowLayout<G, C, V> layout(width);
  const uint32_t groups = gridDim.x * (kUpdateThreads / G), pieces = runs.counts->pieces;
  for (uint32_t p = blockIdx.x * (kUpdateThreads / G) + threadIdx.x / G; p < pieces; p += groups) {
    const Piece piece = runs.pieces[p];
    Pack<V> sum[C];
#pragma unroll
    for (int c = 0; c < C; ++c) sum[c] = zero_pack<V>();
    add_gradients<8 / C>(layout, gradients, runs.order + piece.start, piece.count, sum);
#pragma unroll
    for (int c = 0; c < C; ++c)
      if (layout.holds(c))
        store_pack(runs.partials + int64_t{p} * width + layout.column(c), sum[c]);
  }
}

/// A block sums the pieces of one long run: strands over groups, then the strands in order.
template <int G, int C, int V, class Finish>
__device__ void finish_long_run(const DeviceRuns& runs, const LongRun& run, int width,
                                const Finish& finish, float (&strands)[kSumStrands][V * G]) {
  constexpr int kGroups = kUpdateThreads / G, kFlight = 4;
  const RowLayout<G, C, V> layout(width);
  const uint32_t used = min(uint32_t{kSumStrands}, run.pieces);
  Pack<V> sum[C];
#pragma unroll
  for (int c = 0; c < C; ++c) {
    for (uint32_t j = threadIdx.x / G; j < used; j += kGroups) {
      Pack<V> strand = zero_pack<V>();
      for (uint32_t p = j; p < run.pieces; p += kSumStrands * kFlight) {
        Raw<float, V> value[kFlight];
#pragma unroll
        for (int f = 0; f < kFlight; ++f) {
          const uint32_t piece = p + f * uint32_t{kSumStrands};
          value[f] = piece < run.pieces && layout.holds(c)
                         ? load_raw<V>(runs.partials + int64_t{run.first_piece + piece} * width +
                                       layout.column(c))
                         : zero_raw<float, V>();
        }
#pragma unroll
        for (int f = 0; f < kFlight; ++f) add(strand, pack_of(value[f]));
      }
      store_pack(&strands[j][V * layout.lane], strand);
    }
    __syncthreads();
    sum[c] = zero_pack<V>();
    if (threadIdx.x < kWarp)
      for (uint32_t j = 0; j < used; ++j)
        add(sum[c], pack_of(load_raw<V>(&strands[j][V * layout.lane])));
    __syncthreads();
  }
  if (threadIdx.x >= kWarp) return;
  const bool active = layout.group == 0;
  const uint32_t row = runs.keys[runs.starts[run.run]];
  const auto held = finish.load(layout, row, active);
  finish.finish(layout, run.run, row, active, sum, held);
}

// Measured on an H200 (Zipf ids, E = 64, all bf16; share of the floor): 4 runs a group at a time in
// as many registers as that takes 76 %, 3 blocks a multiprocessor 76 %, 2 runs and 4 blocks 80 %:
// more warps hide a chain of dependent loads better than more loads a warp.
/// The first `long_blocks` blocks take the long runs, the others 32 runs a warp.
template <class Gradient, int G, int C, int V, class Finish>
__global__ void __launch_bounds__(kUpdateThreads, C == 4 ? 2 : 4)
    finish_runs(DeviceRuns runs, const Gradient* __restrict__ gradients, int width, Finish finish,
                unsigned long_blocks) {
  if (blockIdx.x < long_blocks) {
    __shared__ __align__(16) float strands[kSumStrands][V * G];
    for (uint32_t i = blockIdx.x; i < runs.counts->longs; i += long_blocks)
      finish_long_run<G, C, V>(runs, runs.longs[i], width, finish, strands);
    return;
  }
  constexpr int kGroups = kWarp / G, kFlight = C == 1 ? 2 : 1;
  // Positions of a run that are known before its turn, so that their gradients are loaded with the
  // row.
  constexpr int kFirst = 2;  // 4 were slower: most runs are one or two long
  const RowLayout<G, C, V> layout(width);
  const uint32_t distinct = runs.counts->runs, lane = threadIdx.x % kWarp;
  const uint32_t first = (blockIdx.x - long_blocks) * kUpdateThreads + threadIdx.x - lane;
  if (first >= distinct) return;
  uint32_t start = 0, length = 0, row = 0, position[kFirst] = {};
  if (first + lane < distinct) {
    const uint32_t u = first + lane;
    start = runs.starts[u];
    length = (u + 1 < distinct ? runs.starts[u + 1] : runs.count - runs.counts->none) - start;
    row = runs.keys[start];
    if (length > kSumPiece) length = 0;  // a long run is not done here
#pragma unroll
    for (uint32_t i = 0; i < kFirst; ++i)
      if (i < length) position[i] = runs.order[start + i];
  }
#pragma unroll 1
  for (int k = 0; k < kWarp; k += kGroups * kFlight) {
    uint32_t n[kFlight], at[kFlight], to[kFlight];
    Raw<Gradient, V> value[kFlight][kFirst][C];
    typename Finish::Held held[kFlight];
#pragma unroll
    for (int f = 0; f < kFlight; ++f) {
      const int from = k + f * kGroups + layout.group;
      n[f] = __shfl_sync(0xffffffffu, length, from);
      at[f] = __shfl_sync(0xffffffffu, start, from);
      to[f] = __shfl_sync(0xffffffffu, row, from);
      held[f] = finish.load(layout, to[f], n[f] > 0);
#pragma unroll
      for (uint32_t i = 0; i < kFirst; ++i) {
        const int64_t p = __shfl_sync(0xffffffffu, position[i], from);
#pragma unroll
        for (int c = 0; c < C; ++c)
          value[f][i][c] = i < n[f] && layout.holds(c)
                               ? load_raw<V, Reuse::kOnce>(gradients + p * width + layout.column(c))
                               : zero_raw<Gradient, V>();
      }
    }
#pragma unroll
    for (int f = 0; f < kFlight; ++f) {
      Pack<V> sum[C];
#pragma unroll
      for (int c = 0; c < C; ++c) {
        sum[c] = zero_pack<V>();
#pragma unroll
        for (int i = 0; i < kFirst; ++i) add(sum[c], pack_of(value[f][i][c]));
      }
      if (n[f] > kFirst)
        add_gradients<C == 4 ? 2 : 4>(layout, gradients, runs.order + at[f] + kFirst, n[f] - kFirst,
                                      sum);
      __syncwarp();
      finish.finish(layout, first + k + f * kGroups + layout.group, to[f], n[f] > 0, sum, held[f]);
    }
  }
}

/// Launches both kernels.
template <class Gradient, int G, int C, int V, class Finish>
void launch_runs(const DeviceRuns& runs, const RowGradients& g, const Finish& finish) {
  const auto* gradients = static_cast<const Gradient*>(g.gradients);
  const int width = static_cast<int>(g.width);
  const cudaStream_t stream = stream_of(g.stream);
  const auto processors = static_cast<unsigned>(multiprocessors());
  const auto blocks = static_cast<unsigned>(divide_up(g.count, int64_t{kUpdateThreads}));
  const bool may_be_long = g.count > kSumPiece;
  const unsigned long_blocks = may_be_long ? 2 * processors : 0;
  if (may_be_long)
    sum_pieces<Gradient, G, C, V>
        <<<32 * processors, kUpdateThreads, 0, stream>>>(runs, gradients, width);
  finish_runs<Gradient, G, C, V><<<long_blocks + blocks, kUpdateThreads, 0, stream>>>(
      runs, gradients, width, finish, long_blocks);
  check_launch("update of rows");
}

/// Gradient of any width: the same order of additions, by the lanes of a warp, column by column.
template <class Gradient>
__device__ float sum_column(const DeviceRuns& runs, const Gradient* gradients, int64_t width,
                            uint32_t start, uint32_t n, int64_t column) {
  const auto sum_piece = [&](uint32_t first) {
    float sum = 0;
    const uint32_t last = min(n, first + uint32_t{kSumPiece});
    for (uint32_t i = first; i < last; ++i)
      sum += to_float(gradients[runs.order[start + i] * width + column]);
    return sum;
  };
  if (n <= kSumPiece) return sum_piece(0);
  float total = 0;
  for (uint32_t j = 0; j < kSumStrands && j * uint32_t{kSumPiece} < n; ++j) {
    float strand = 0;
    for (uint32_t first = j * uint32_t{kSumPiece}; first < n; first += kSumPiece * kSumStrands)
      strand += sum_piece(first);
    total += strand;
  }
  return total;
}

struct AnyRun {
  uint32_t run, row, start, length;
  bool valid;
};

/// The run of this warp, a warp a run.
__device__ inline AnyRun any_run(const DeviceRuns& runs) {
  AnyRun run{};
  run.run = blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  const uint32_t distinct = runs.counts->runs;
  run.valid = run.run < distinct;
  if (!run.valid) return run;
  run.start = runs.starts[run.run];
  const uint32_t end =
      run.run + 1 < distinct ? runs.starts[run.run + 1] : runs.count - runs.counts->none;
  run.length = end - run.start;
  run.row = runs.keys[run.start];
  return run;
}

}  // namespace tautline::kernels
