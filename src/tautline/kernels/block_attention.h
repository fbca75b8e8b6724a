// Attention inside blocks of 64 tokens, counted from each sequence's start; the last block may be
// shorter: o_i = sum_j softmax_j(scale * q_i . k_j) v_j over the tokens j of the block of i, all of
// them or (causal) those up to i. Linear in length. One pass, nothing saved but q, k and v: the
// backward recomputes the scores, and its row sums d_o . o are sums over P and d_P of the block.
// After the block attention of Meta's GEM (PyTorch blog, May 2026), which is bidirectional and so
// not for next-item training.
//
// Rotary positions (Su et al. 2021, section 3.2.2) of q and k, and of v where asked, are applied as
// they are loaded, and undone in FP32 as the gradients are stored. A position is the token's place
// in its sequence; channel pair c turns by position * base^(-2 c / D). The scores depend on
// differences of positions alone, so q and k turn by the place in the block; v turns by that too,
// and o by the rest, the block's first position.
//
// B sequences, T tokens, H heads, G key/value heads (H a multiple of G; query head h reads h / (H /
// G)), D head dimension (1..256 on the CPU, even where there are rotary positions).
// Precision: FP32 accumulation; CPU elements are FP32.
#pragma once

#include <cstdint>

#include "tautline/kernels/attention_problem.h"
#include "tautline/kernels/isa.h"

namespace tautline::kernels {

inline constexpr int64_t kAttentionBlock = 64;

/// Which channels turn together: none; c with c + D / 2; 2 c with 2 c + 1.
enum class RopeLayout : int32_t { kNone, kHalfSplit, kInterleaved };

struct BlockAttention {
  HeadsView q, k, v;                       // [T, H, D], [T, G, D], [T, G, D]
  HeadsView o;                             // [T, H, D]: written by the forward
  const int64_t* offsets = nullptr;        // [B + 1]
  const int64_t* block_offsets = nullptr;  // [B + 1]: sums of ceil(length / 64)
  int64_t sequences = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t tokens = 0, blocks = 0;  // T, block_offsets[B]
  bool causal = false;
  double scale = 1.0;
  RopeLayout rope = RopeLayout::kNone;
  double rope_base = 10000.0;
  bool rotate_values = false;
  Element element = Element::kFloat32;  // of q, k, v, o and their gradients
  HeadsView d_o, d_q, d_k, d_v;         // backward: reads q, k, v, d_o, writes the rest
  void* stream = nullptr;
};

void block_attention_forward_ref(const BlockAttention& p);
void block_attention_backward_ref(const BlockAttention& p);

/// Tasks [begin, end) of blocks * kv_heads; task = block * kv_heads + kv_head. Any split over
/// threads gives the same bits.
TAUTLINE_ISA_KERNEL(void block_attention_forward_cpu(const BlockAttention& p, int64_t begin,
                                                     int64_t end),
                    block_attention_forward_cpu(p, begin, end))
TAUTLINE_ISA_KERNEL(void block_attention_backward_cpu(const BlockAttention& p, int64_t begin,
                                                      int64_t end),
                    block_attention_backward_cpu(p, begin, end))

/// bf16 or fp16, D to 256 (block_attention_portable.cu). `blocks` is an upper bound here (T / 64 + B
/// will do) and block_offsets are not read. workspace: that many bytes, 256-byte aligned.
int64_t block_attention_workspace_cuda(const BlockAttention& p, bool backward);
void block_attention_forward_cuda(const BlockAttention& p, void* workspace);
void block_attention_backward_cuda(const BlockAttention& p, void* workspace);

}  // namespace tautline::kernels
