// Block attention on every card from sm_80: the plain kernels of jagged attention
// (attention_portable.cuh) with blocks as their sequences, between passes that turn the channels. So
// q, k and v are copied where they turn, and the backward runs the forward again for o and lse.
//
// Precision: turned values and the gradients before they are turned back are rounded to T once more
// than the header says.
#include <cmath>

#include <cub/block/block_scan.cuh>

#include "tautline/kernels/attention.h"
#include "tautline/kernels/block_attention.h"
#include "tautline/kernels/launch.cuh"

namespace tautline::kernels {
namespace {

constexpr int kScanThreads = 1024, kTurnThreads = 256;

/// Taken from one piece of memory, front to back; with a null base only the size counts.
struct Workspace {
  char* base;
  int64_t used = 0;
  template <class X>
  X* take(int64_t count) {
    X* result = base ? reinterpret_cast<X*>(base + used) : nullptr;
    used += (count * static_cast<int64_t>(sizeof(X)) + 255) / 256 * 256;
    return result;
  }
  HeadsView heads(int64_t tokens, int64_t heads, int64_t dim, Element element) {
    return {take<char>(tokens * heads * dim * element_bytes(element)), heads * dim, dim};
  }
};

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

/// out = in with every channel pair turned by direction * (place in the sequence) * base^(-2c / D);
/// a thread block a block. In place too. Angles in double: a place may be far.
template <class T>
__global__ void __launch_bounds__(kTurnThreads)
    turn(HeadsView in, HeadsView out, Blocks blocks, int64_t count, int heads, int dim,
         bool interleaved, double log2_base, double direction) {
  constexpr double kTurn = 6.283185307179586;
  __shared__ double frequency[128];
  const int half = dim / 2;
  for (int c = threadIdx.x; c < half; c += kTurnThreads)
    frequency[c] = direction * exp2(-2.0 * c / dim * log2_base);
  __syncthreads();
  for (int64_t block = blockIdx.x; block < count; block += gridDim.x) {
    const int64_t token = blocks.token[block], place = blocks.place[block];
    const int tokens = static_cast<int>(blocks.token[block + 1] - token);
    for (int i = threadIdx.x; i < tokens * half; i += kTurnThreads) {
      const int row = i / half, c = i % half;
      const double angle = static_cast<double>(place + row) * frequency[c];
      float sine, cosine;
      sincosf(static_cast<float>(angle - kTurn * rint(angle / kTurn)), &sine, &cosine);
      const int first = interleaved ? 2 * c : c, second = interleaved ? first + 1 : c + half;
      for (int h = 0; h < heads; ++h) {
        const T* from =
            static_cast<const T*>(in.data) + (token + row) * in.token_stride + h * in.head_stride;
        T* to = static_cast<T*>(out.data) + (token + row) * out.token_stride + h * out.head_stride;
        const float a = to_float(from[first]), b = to_float(from[second]);
        to[first] = from_float<T>(a * cosine - b * sine);
        to[second] = from_float<T>(b * cosine + a * sine);
      }
    }
  }
}

void turn_view(const BlockAttention& p, const Blocks& blocks, HeadsView in, HeadsView out,
               int64_t heads, double direction) {
  const auto run = [&](auto t) {
    using T = decltype(t);
    const auto ctas = static_cast<unsigned>(p.blocks < (1 << 20) ? p.blocks : 1 << 20);
    turn<T><<<ctas, kTurnThreads, 0, stream_of(p.stream)>>>(
        in, out, blocks, p.blocks, static_cast<int>(heads), static_cast<int>(p.head_dim),
        p.rope == RopeLayout::kInterleaved, std::log2(p.rope_base), direction);
    check_launch("block_attention turn");
  };
  if (p.element == Element::kBFloat16) return run(BFloat16{});
  run(Float16{});
}

struct Prepared {
  Blocks blocks;
  JaggedAttention attention;
};

/// The jagged problem, all but its outputs. With a null workspace nothing runs.
Prepared prepare(const BlockAttention& p, Workspace& workspace) {
  Prepared out;
  Blocks& blocks = out.blocks;
  blocks.before = workspace.take<int64_t>(p.sequences + 1);
  blocks.token = workspace.take<int64_t>(p.blocks + 1);
  blocks.place = workspace.take<int64_t>(p.blocks);
  JaggedAttention& a = out.attention;
  a.q = p.q, a.k = p.k, a.v = p.v;
  a.q_offsets = a.k_offsets = blocks.token;
  a.sequences = p.blocks;
  a.heads = p.heads, a.kv_heads = p.kv_heads;
  a.head_dim = a.value_dim = p.head_dim;
  a.rows = a.k_tokens = p.tokens;
  a.max_q = a.max_k = kAttentionBlock;
  if (p.causal) a.window = kCausal;
  a.element = p.element;
  a.scale = p.scale;
  a.lse = workspace.take<float>(p.heads * p.tokens);
  a.stream = p.stream;
  const bool turns = p.rope != RopeLayout::kNone;
  if (turns) {
    a.q = workspace.heads(p.tokens, p.heads, p.head_dim, p.element);
    a.k = workspace.heads(p.tokens, p.kv_heads, p.head_dim, p.element);
    if (p.rotate_values) a.v = workspace.heads(p.tokens, p.kv_heads, p.head_dim, p.element);
  }
  if (!workspace.base) return out;
  cudaStream_t stream = stream_of(p.stream);
  count_blocks<<<1, kScanThreads, 0, stream>>>(p.offsets, p.sequences, blocks.before);
  check_launch("block_attention count");
  place_blocks<<<static_cast<unsigned>(divide_up<int64_t>(p.blocks + 1, 256)), 256, 0, stream>>>(
      p.offsets, p.sequences, p.tokens, p.blocks, blocks);
  check_launch("block_attention place");
  if (turns) {
    turn_view(p, blocks, p.q, a.q, p.heads, 1);
    turn_view(p, blocks, p.k, a.k, p.kv_heads, 1);
    if (p.rotate_values) turn_view(p, blocks, p.v, a.v, p.kv_heads, 1);
  }
  return out;
}

void take_backward(const BlockAttention& p, Workspace& workspace, JaggedAttention& a) {
  a.o = workspace.heads(p.tokens, p.heads, p.head_dim, p.element);
  a.delta = workspace.take<float>(p.heads * p.tokens);
  a.d_o = p.d_o, a.d_q = p.d_q, a.d_k = p.d_k, a.d_v = p.d_v;
}

}  // namespace

int64_t block_attention_workspace_cuda(const BlockAttention& p, bool backward) {
  Workspace workspace{nullptr};
  Prepared prepared = prepare(p, workspace);
  if (backward) take_backward(p, workspace, prepared.attention);
  return workspace.used;
}

void block_attention_forward_cuda(const BlockAttention& p, void* memory) {
  if (p.tokens == 0) return;
  Workspace workspace{static_cast<char*>(memory)};
  JaggedAttention a = prepare(p, workspace).attention;
  a.o = p.o;
  jagged_attention_forward_cuda(a);
}

void block_attention_backward_cuda(const BlockAttention& p, void* memory) {
  if (p.tokens == 0) return;
  Workspace workspace{static_cast<char*>(memory)};
  auto [blocks, a] = prepare(p, workspace);
  take_backward(p, workspace, a);
  jagged_attention_forward_cuda(a);
  jagged_attention_backward_cuda(a);
  if (p.rope == RopeLayout::kNone) return;
  turn_view(p, blocks, p.d_q, p.d_q, p.heads, -1);
  turn_view(p, blocks, p.d_k, p.d_k, p.kv_heads, -1);
  if (p.rotate_values) turn_view(p, blocks, p.d_v, p.d_v, p.kv_heads, -1);
}

}  // namespace tautline::kernels
