// Block attention on every card from sm_80: the plain kernels of jagged attention
// (attention_portable.cuh) with blocks as their sequences, between passes that turn the channels. So
// q, k and v are copied where they turn, and the backward runs the forward again for o and lse.
//
// Precision: turned values and the gradients before they are turned back are rounded to T once more
// than the header says.
#include <cmath>

#include "tautline/kernels/attention.h"
#include "tautline/kernels/block_attention.cuh"

namespace tautline::kernels {
namespace {

constexpr int kTurnThreads = 256;

/// out = in with every channel pair turned by direction * (place in the sequence) * base^(-2c / D);
/// a thread block a block. In place too. Angles in double: a place may be far.
template <class T>
__global__ void __launch_bounds__(kTurnThreads)
    turn(HeadsView in, HeadsView out, BlockPlaces blocks, int64_t count, int heads, int dim,
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

void turn_view(const BlockAttention& p, const BlockPlaces& blocks, HeadsView in, HeadsView out,
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

/// The jagged problem, all but its outputs.
JaggedAttention prepare(const BlockAttention& p, const BlockPlaces& blocks, Workspace& workspace) {
  JaggedAttention a;
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
  if (workspace.base && turns) {
    turn_view(p, blocks, p.q, a.q, p.heads, 1);
    turn_view(p, blocks, p.k, a.k, p.kv_heads, 1);
    if (p.rotate_values) turn_view(p, blocks, p.v, a.v, p.kv_heads, 1);
  }
  return a;
}

void take_backward(const BlockAttention& p, Workspace& workspace, JaggedAttention& a) {
  a.o = workspace.heads(p.tokens, p.heads, p.head_dim, p.element);
  a.delta = workspace.take<float>(p.heads * p.tokens);
  a.d_o = p.d_o, a.d_q = p.d_q, a.d_k = p.d_k, a.d_v = p.d_v;
}

}  // namespace

void block_attention_portable_forward(const BlockAttention& p, const BlockPlaces& blocks,
                                      Workspace& workspace) {
  JaggedAttention a = prepare(p, blocks, workspace);
  if (!workspace.base) return;
  a.o = p.o;
  jagged_attention_forward_cuda(a);
}

void block_attention_portable_backward(const BlockAttention& p, const BlockPlaces& blocks,
                                       Workspace& workspace) {
  JaggedAttention a = prepare(p, blocks, workspace);
  take_backward(p, workspace, a);
  if (!workspace.base) return;
  jagged_attention_forward_cuda(a);
  jagged_attention_backward_cuda(a);
  if (p.rope == RopeLayout::kNone) return;
  turn_view(p, blocks, p.d_q, p.d_q, p.heads, -1);
  turn_view(p, blocks, p.d_k, p.d_k, p.kv_heads, -1);
  if (p.rotate_values) turn_view(p, blocks, p.d_v, p.d_v, p.kv_heads, -1);
}

}  // namespace tautline::kernels
