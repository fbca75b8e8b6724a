// Block attention on CUDA: where the blocks lie, then the fastest kernel that takes the problem.
#include <cub/block/block_scan.cuh>

#include "tautline/kernels/block_attention.cuh"

namespace tautline::kernels {
namespace {

constexpr int kScanThreads = 1024;

/// As they are made.
struct Blocks {
  int64_t* before;  // [B + 1]: blocks of the sequences before
  int64_t* token;   // [blocks + 1]: first token; T behind the last one
  int64_t* place;   // [blocks]: of that token in its sequence
};

__global__ void __launch_bounds__(kScanThreads)
    count_blocks(const int64_t* offsets, int64_t sequences, int64_t* before) {
  using Scan = cub::BlockScan<int64_t, kScanThreads>;
  __shared__ Scan::TempStorage storage;
  int64_t done = 0;
  for (int64_t first = 0; first < sequences; first += kScanThreads) {
    const int64_t b = first + threadIdx.x;
    const int64_t blocks =
        b < sequences ? (offsets[b + 1] - offsets[b] + kAttentionBlock - 1) / kAttentionBlock : 0;
    int64_t place = 0, all = 0;
    Scan(storage).ExclusiveSum(blocks, place, all);
    if (b < sequences) before[b] = done + place;
    done += all;
    __syncthreads();
  }
  if (threadIdx.x == 0) before[sequences] = done;
}

__global__ void place_blocks(const int64_t* offsets, int64_t sequences, int64_t tokens,
                             int64_t blocks, Blocks out) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i > blocks) return;
  int64_t low = 0, high = sequences;  // the sequence of block i is the last one with before <= i
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (out.before[middle] <= i ? low : high) = middle;
  }
  const bool none = sequences == 0 || i >= out.before[sequences];
  const int64_t place = none ? 0 : (i - out.before[low]) * kAttentionBlock;
  out.token[i] = none ? tokens : offsets[low] + place;
  if (i < blocks) out.place[i] = place;
}

BlockPlaces place(const BlockAttention& p, Workspace& workspace) {
  Blocks blocks;
  blocks.before = workspace.take<int64_t>(p.sequences + 1);
  blocks.token = workspace.take<int64_t>(p.blocks + 1);
  blocks.place = workspace.take<int64_t>(p.blocks);
  if (workspace.base) {
    cudaStream_t stream = stream_of(p.stream);
    count_blocks<<<1, kScanThreads, 0, stream>>>(p.offsets, p.sequences, blocks.before);
    check_launch("block_attention count");
    place_blocks<<<static_cast<unsigned>(divide_up<int64_t>(p.blocks + 1, 256)), 256, 0, stream>>>(
        p.offsets, p.sequences, p.tokens, p.blocks, blocks);
    check_launch("block_attention place");
  }
  return {blocks.token, blocks.place};
}

}  // namespace

int64_t block_attention_workspace_cuda(const BlockAttention& p, bool backward) {
  Workspace workspace{nullptr};
  const BlockPlaces blocks = place(p, workspace);
  if (fused_takes(p, backward)) return workspace.used;
  if (backward)
    block_attention_portable_backward(p, blocks, workspace);
  else
    block_attention_portable_forward(p, blocks, workspace);
  return workspace.used;
}

void block_attention_forward_cuda(const BlockAttention& p, void* memory) {
  if (p.tokens == 0) return;
  Workspace workspace{static_cast<char*>(memory)};
  const BlockPlaces blocks = place(p, workspace);
  if (fused_takes(p, /*backward=*/false)) return block_attention_fused_forward(p, blocks);
  block_attention_portable_forward(p, blocks, workspace);
}

void block_attention_backward_cuda(const BlockAttention& p, void* memory) {
  if (p.tokens == 0) return;
  Workspace workspace{static_cast<char*>(memory)};
  const BlockPlaces blocks = place(p, workspace);
  if (block_attention_backward_sm90_takes(p)) return block_attention_backward_sm90(p, blocks);
  if (fused_takes(p, /*backward=*/true)) return block_attention_fused_backward(p, blocks);
  block_attention_portable_backward(p, blocks, workspace);
}

}  // namespace tautline::kernels
