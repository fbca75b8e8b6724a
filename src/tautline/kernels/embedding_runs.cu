// ids -> sorted (row, position) -> starts of the runs of equal rows -> pieces of long runs. The
// sort is CUB's radix sort over as many bits as the table's rows have; it is stable, so positions
// stay in order.
#include <bit>
#include <cstdio>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>
#include <thrust/iterator/counting_iterator.h>

#include "tautline/kernels/embedding_runs.cuh"
#include "tautline/kernels/rows.cuh"

namespace tautline::kernels {
namespace {

constexpr int kThreads = 256;

/// ids -> keys; -1 becomes table_rows, which sorts behind every row.
__global__ void make_keys(const int64_t* ids, uint32_t count, uint32_t table_rows, uint32_t* keys,
                          uint32_t* positions, RunCounts* counts) {
  const uint32_t n = blockIdx.x * kThreads + threadIdx.x;
  const long long row = n < count ? ids[n] : 0;
  if (row < -1 || (n < count && row >= table_rows)) bad_row(row, n, table_rows);
  if (n < count) {
    keys[n] = row < 0 ? table_rows : static_cast<uint32_t>(row);
    positions[n] = n;
  }
  const unsigned none = __ballot_sync(0xffffffffu, row < 0);
  if (threadIdx.x % kWarp == 0 && none != 0) atomicAdd(&counts->none, __popc(none));
}

/// Whether a run starts at a place of the sorted keys.
struct StartsRun {
  const uint32_t* keys;
  uint32_t table_rows;
  __device__ bool operator()(uint32_t n) const {
    const uint32_t key = keys[n];
    return key < table_rows && (n == 0 || keys[n - 1] != key);
  }
};

/// Lists the pieces of runs that are longer than one. A warp looks at 32 runs.
__global__ void find_long_runs(DeviceRuns runs) {
  const uint32_t distinct = runs.counts->runs, lane = threadIdx.x % kWarp;
  const uint32_t u = blockIdx.x * kThreads + threadIdx.x;
  if (u - lane >= distinct) return;
  uint32_t start = 0, length = 0;
  if (u < distinct) {
    start = runs.starts[u];
    const uint32_t end = u + 1 < distinct ? runs.starts[u + 1] : runs.count - runs.counts->none;
    length = end - start;
  }
  for (unsigned waiting = __ballot_sync(0xffffffffu, length > kSumPiece); waiting != 0;
       waiting &= waiting - 1) {
    const int from = __ffs(static_cast<int>(waiting)) - 1;
    const uint32_t first = __shfl_sync(0xffffffffu, start, from);
    const uint32_t n = __shfl_sync(0xffffffffu, length, from);
    const uint32_t pieces = divide_up(n, uint32_t{kSumPiece});
    uint32_t slot = 0;
    if (lane == 0) {
      slot = atomicAdd(&runs.counts->pieces, pieces);
      runs.longs[atomicAdd(&runs.counts->longs, 1u)] = {u - lane + from, slot, pieces};
    }
    slot = __shfl_sync(0xffffffffu, slot, 0);
    for (uint32_t p = lane; p < pieces; p += kWarp) {
      const uint32_t begin = p * uint32_t{kSumPiece};
      runs.pieces[slot + p] = {first + begin, min(uint32_t{kSumPiece}, n - begin)};
    }
  }
}

/// Hands out parts of a workspace; with a null base it only counts.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* take(size_t count) {
    T* at = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += divide_up(count * sizeof(T), size_t{256}) * 256;
    return at;
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

struct Workspace {
  uint32_t *keys[2], *positions[2];
  DeviceRuns runs;
  void* scratch;
  size_t scratch_bytes, total;
};

int key_bits(int64_t table_rows) { return std::bit_width(static_cast<uint64_t>(table_rows)); }

Workspace carve(void* base, int64_t count, int64_t width, int64_t table_rows) {
  if (count >= 0xffffffff || table_rows >= 0xffffffff)
    throw user_error(count, " ids into a table of ", table_rows,
                     " rows; on CUDA both must be below 2^32 - 1 on one device");
  Arena arena(base);
  const auto n = static_cast<size_t>(count);
  // A long run has more than kSumPiece positions and at most one piece that is not full.
  const size_t longs = n / kSumPiece + 1, pieces = 2 * longs;
  Workspace w{};
  for (int i = 0; i < 2; ++i) {
    w.keys[i] = arena.take<uint32_t>(n);
    w.positions[i] = arena.take<uint32_t>(n);
  }
  w.runs.count = static_cast<uint32_t>(count);
  w.runs.starts = arena.take<uint32_t>(n);
  w.runs.counts = arena.take<RunCounts>(1);
  w.runs.pieces = arena.take<Piece>(pieces);
  w.runs.longs = arena.take<LongRun>(longs);
  w.runs.partials = arena.take<float>(pieces * static_cast<size_t>(width));
  cub::DoubleBuffer<uint32_t> keys(w.keys[0], w.keys[1]), positions(w.positions[0], w.positions[1]);
  size_t sort = 0, select = 0;
  check_cuda(cub::DeviceRadixSort::SortPairs(nullptr, sort, keys, positions, count, 0,
                                             key_bits(table_rows)),
             "size of the sort");
  check_cuda(
      cub::DeviceSelect::If(nullptr, select, thrust::counting_iterator<uint32_t>(0), w.runs.starts,
                            &w.runs.counts->runs, count, StartsRun{nullptr, 0}),
      "size of the selection");
  w.scratch_bytes = sort > select ? sort : select;
  w.scratch = arena.take<char>(w.scratch_bytes);
  w.total = arena.used();
  return w;
}

}  // namespace

size_t update_workspace_bytes(int64_t count, int64_t width, int64_t table_rows) {
  return carve(nullptr, count, width, table_rows).total;
}

DeviceRuns make_runs(const RowGradients& g, void* workspace, bool find_long) {
  Workspace w = carve(workspace, g.count, g.width, g.table_rows);
  const cudaStream_t stream = stream_of(g.stream);
  const auto table_rows = static_cast<uint32_t>(g.table_rows);
  const auto blocks = static_cast<unsigned>(divide_up(g.count, int64_t{kThreads}));
  check_cuda(cudaMemsetAsync(w.runs.counts, 0, sizeof(RunCounts), stream), "clearing counts");
  make_keys<<<blocks, kThreads, 0, stream>>>(g.rows, w.runs.count, table_rows, w.keys[0],
                                             w.positions[0], w.runs.counts);
  check_launch("keys of rows");
  cub::DoubleBuffer<uint32_t> keys(w.keys[0], w.keys[1]), positions(w.positions[0], w.positions[1]);
  check_cuda(cub::DeviceRadixSort::SortPairs(w.scratch, w.scratch_bytes, keys, positions, g.count,
                                             0, key_bits(g.table_rows), stream),
             "sort of rows");
  w.runs.keys = keys.Current();
  w.runs.order = positions.Current();
  check_cuda(cub::DeviceSelect::If(
                 w.scratch, w.scratch_bytes, thrust::counting_iterator<uint32_t>(0), w.runs.starts,
                 &w.runs.counts->runs, g.count, StartsRun{w.runs.keys, table_rows}, stream),
             "starts of runs");
  if (find_long) {
    find_long_runs<<<blocks, kThreads, 0, stream>>>(w.runs);
    check_launch("long runs");
  }
  return w.runs;
}

}  // namespace tautline::kernels
