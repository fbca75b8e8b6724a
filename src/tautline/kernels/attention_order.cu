// Three kernels: each sequence's place in the natural order (a scan), each tile's work (a warp a
// sequence), and a counting sort of tiles or, for keys, sequences in one CTA, 8 bits of work a pass. 256 kinds of work are one pass;
// that is all but very long sequences. One CTA, because a batch has thousands of tiles and not
// millions: more of them would wait for each other longer than they work.
#include <algorithm>

#include <cub/block/block_scan.cuh>

#include "tautline/kernels/attention_order.h"
#include "tautline/kernels/launch.cuh"

namespace tautline::kernels {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;
constexpr int kDigits = 256;
using Scan = cub::BlockScan<int32_t, kThreads>;

struct Workspace {
  int32_t* starts;  // [B + 1]: items of the sequences before
  int32_t* most;    // [1]: largest work
  int2* pairs[2];   // [capacity]: in natural order; after the first of two passes
  int32_t* work[2];
};
Workspace workspace_of(const AttentionOrderBuild& p) {
  Workspace w{};
  w.pairs[0] = reinterpret_cast<int2*>(p.workspace);
  w.pairs[1] = w.pairs[0] + p.capacity;
  w.work[0] = reinterpret_cast<int32_t*>(w.pairs[1] + p.capacity);
  w.work[1] = w.work[0] + p.capacity;
  w.starts = w.work[1] + p.capacity;
  w.most = w.starts + p.sequences + 1;
  return w;
}

struct Lengths {
  int64_t nq, nk;
};
__device__ Lengths lengths_of(const AttentionOrderRequest& r, int64_t b) {
  return {r.q_offsets ? r.q_offsets[b + 1] - r.q_offsets[b] : r.seeds,
          r.k_offsets[b + 1] - r.k_offsets[b]};
}
__device__ int64_t rows_of(const AttentionOrderRequest& r, Lengths n) {
  return r.pass == AttentionPass::kKeys ? n.nk : n.nq;
}
__device__ int32_t items_of(const AttentionOrderRequest& r, Lengths n) {
  const int64_t rows = rows_of(r, n);
  if (rows <= 0) return 0;
  return is_one_item(r, n.nq, n.nk) ? 1 : static_cast<int32_t>((rows - 1) / r.tile + 1);
}

__global__ void __launch_bounds__(kThreads)
    starts_kernel(const AttentionOrderBuild p, const Workspace w) {
  __shared__ Scan::TempStorage storage;
  int32_t before = 0;
  for (int64_t first = 0; first < p.sequences; first += kThreads) {
    const int64_t b = first + threadIdx.x;
    const int32_t items = b < p.sequences ? items_of(p, lengths_of(p, b)) : 0;
    int32_t place = 0, all = 0;
    Scan(storage).ExclusiveSum(items, place, all);
    if (b < p.sequences) w.starts[b] = before + place;
    before += all;
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  w.starts[p.sequences] = before;
  p.count[0] = min(static_cast<int64_t>(before), p.capacity);
  p.count[1] = static_cast<int32_t>(made_for(p));
  *w.most = 0;
}

__device__ int32_t clamped(int64_t work) {
  return static_cast<int32_t>(work < kMostOrderWork ? work : kMostOrderWork);
}

__device__ int64_t warp_total(int64_t x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

/// A warp a sequence. Queries: a pair and its work for each tile. Keys: one pair, (sequence, number of
/// tiles), and the work by which the sequence is sorted.
__global__ void work_kernel(const AttentionOrderBuild p, const Workspace w) {
  const int lane = threadIdx.x % kWarp;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / kWarp);
  int64_t b = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  int32_t most = 0;
  for (; b < p.sequences; b += warps) {
    const Lengths n = lengths_of(p, b);
    const int64_t rows = rows_of(p, n), start = w.starts[b];
    const int32_t tiles = rows > 0 ? static_cast<int32_t>((rows - 1) / p.tile + 1) : 0;
    int64_t all = 0;
    int32_t heaviest = 0;
    for (int32_t tile = lane; tile < tiles; tile += kWarp) {
      const int64_t work =
          tile_work(p, tile * p.tile, min(rows, (tile + int64_t{1}) * p.tile), n.nq, n.nk);
      all += work;
      heaviest = max(heaviest, clamped(work));
      if (p.pass == AttentionPass::kKeys || start + tile >= p.capacity) continue;
      w.pairs[0][start + tile] = make_int2(static_cast<int32_t>(b), tile);
      w.work[0][start + tile] = clamped(work);
    }
    if (p.pass == AttentionPass::kKeys) {
      const bool one = is_one_item(p, n.nq, n.nk);
      heaviest = one ? clamped(warp_total(all)) : __reduce_max_sync(0xffffffffu, heaviest);
      if (lane == 0) {
        w.pairs[0][b] = make_int2(static_cast<int32_t>(b), one && tiles > 0 ? 1 : tiles);
        w.work[0][b] = heaviest;
      }
    }
    most = max(most, heaviest);
  }
  most = __reduce_max_sync(0xffffffffu, most);
  if (lane == 0 && most > 0) atomicMax(w.most, most);  // of integers: the same in any order
}

/// Stable, by falling bits [shift, shift + 8) of work. Each warp has one stretch of the input.
__device__ void sort_pass(const int2* pairs, const int32_t* work, int32_t count, int shift,
                          int2* pairs_out, int32_t* work_out, int32_t* place,
                          Scan::TempStorage& storage) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int32_t each = (count + kThreads - 1) / kThreads * kWarp;
  const int32_t begin = min(count, warp * each), end = min(count, begin + each);
  // One counter for each digit (largest first) and, inside it, each warp.
  const auto counter_of = [&](int32_t w) {
    return (kDigits - 1 - (w >> shift & 255)) * kWarps + warp;
  };
  for (int i = threadIdx.x; i < kDigits * kWarps; i += kThreads) place[i] = 0;
  __syncthreads();
  for (int32_t i = begin + lane; i - lane < end; i += kWarp) {
    const int counter = i < end ? counter_of(work[i]) : -1;
    const unsigned same = __match_any_sync(0xffffffffu, counter);
    if (counter >= 0 && lane == __ffs(same) - 1) place[counter] += __popc(same);
    __syncwarp();
  }
  __syncthreads();
  constexpr int kEach = kDigits * kWarps / kThreads;
  int32_t mine[kEach];
  for (int i = 0; i < kEach; ++i) mine[i] = place[threadIdx.x * kEach + i];
  Scan(storage).ExclusiveSum(mine, mine);
  for (int i = 0; i < kEach; ++i) place[threadIdx.x * kEach + i] = mine[i];
  __syncthreads();
  for (int32_t i = begin + lane; i - lane < end; i += kWarp) {
    const int32_t own = i < end ? work[i] : 0;
    const int2 pair = i < end ? pairs[i] : int2{};
    const int counter = i < end ? counter_of(own) : -1;
    const unsigned same = __match_any_sync(0xffffffffu, counter);
    const int32_t first = counter >= 0 ? place[counter] : 0;
    __syncwarp();
    if (counter >= 0) {
      const int32_t to = first + __popc(same & ((1u << lane) - 1));
      pairs_out[to] = pair;
      if (work_out) work_out[to] = own;
      if (lane == __ffs(same) - 1) place[counter] = first + __popc(same);
    }
    __syncwarp();
  }
  __syncthreads();
}

/// From sorted pairs (sequence, number of tiles) the list of tiles: those of kOrderTogether sequences
/// in turns.
__device__ void expand(const AttentionOrderBuild& p, const int2* sequences,
                       Scan::TempStorage& storage) {
  static_assert(kThreads % kOrderTogether == 0);
  auto* tiles = reinterpret_cast<int2*>(p.tiles);
  int32_t before = 0;
  for (int64_t first = 0; first < p.sequences; first += kThreads) {
    const int64_t i = first + threadIdx.x, group = i / kOrderTogether * kOrderTogether;
    const int2 own = i < p.sequences ? sequences[i] : int2{};
    int32_t place = 0, all = 0, counts[kOrderTogether];
    Scan(storage).ExclusiveSum(own.y, place, all);
    for (int m = 0; m < kOrderTogether; ++m) {
      counts[m] = group + m < p.sequences ? sequences[group + m].y : 0;
      if (group + m < i) place -= counts[m];
    }
    for (int32_t tile = 0; tile < own.y; ++tile) {
      int64_t at = before + place;
      for (int m = 0; m < kOrderTogether; ++m) at += min(counts[m], tile + (group + m < i ? 1 : 0));
      if (at < p.capacity) tiles[at] = make_int2(own.x, tile);
    }
    before += all;
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads)
    sort_kernel(const AttentionOrderBuild p, const Workspace w) {
  __shared__ int32_t place[kDigits * kWarps];
  __shared__ Scan::TempStorage storage;
  const bool keys = p.pass == AttentionPass::kKeys, once = *w.most < kDigits;
  const int32_t count = keys ? static_cast<int32_t>(p.sequences) : p.count[0];
  int2* sorted = keys ? w.pairs[once] : reinterpret_cast<int2*>(p.tiles);
  if (once) {
    sort_pass(w.pairs[0], w.work[0], count, 0, sorted, nullptr, place, storage);
  } else {
    sort_pass(w.pairs[0], w.work[0], count, 0, w.pairs[1], w.work[1], place, storage);
    sort_pass(w.pairs[1], w.work[1], count, 8, sorted, nullptr, place, storage);
  }
  if (keys) expand(p, sorted, storage);
}

}  // namespace

void attention_order_cuda(const AttentionOrderBuild& p) {
  if (p.tile < 1 || p.other_tile < 1)
    throw user_error("attention_order: tiles of ", p.tile, " and ", p.other_tile,
                     " rows; each must be at least 1");
  if (p.pass == AttentionPass::kKeys && p.tile_work < 1)  // sequences without rows are sorted last
    throw user_error("attention_order: tile_work ", p.tile_work, "; at least 1 is needed");
  if (p.capacity > 0x7fffffff || p.sequences >= 0x7fffffff)
    throw user_error("attention_order: ", p.sequences, " sequences with up to ", p.capacity,
                     " tiles; below 2^31 are needed");
  const Workspace w = workspace_of(p);
  cudaStream_t stream = stream_of(p.stream);
  starts_kernel<<<1, kThreads, 0, stream>>>(p, w);
  check_launch("attention_order starts");
  constexpr int kWorkThreads = 128;
  const int64_t ctas =
      std::clamp<int64_t>(divide_up<int64_t>(p.sequences, kWorkThreads / kWarp), 1, 1 << 14);
  work_kernel<<<static_cast<unsigned>(ctas), kWorkThreads, 0, stream>>>(p, w);
  check_launch("attention_order work");
  sort_kernel<<<1, kThreads, 0, stream>>>(p, w);
  check_launch("attention_order sort");
}

}  // namespace tautline::kernels
