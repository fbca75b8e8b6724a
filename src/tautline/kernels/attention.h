// Softmax attention over jagged sequences: o_i = sum_j softmax_j(scale * q_i . k_j) v_j, where i
// and j are tokens of the same sequence.
//
// Flash attention (Dao et al. 2022, algorithm 1): scores never reach memory; the forward saves one
// number a row, lse = log sum exp, from which the backward recomputes the probabilities.
// Causal means that the last query of a sequence sees its last key: query i of nq sees keys
// 0 .. i + (nk - nq). A query that sees no key gets o = 0 and lse = -inf.
//
// B sequences, Tq and Tk tokens, H heads, D head dimension. q, k, v may be strided views of one
// packed projection: element (t, h, d) lies at t * token_stride + h * head_stride + d.
// Precision: FP32 accumulation; CPU elements are FP32.
#pragma once

#include <cstdint>

#include "tautline/kernels/element.h"
#include "tautline/kernels/isa.h"

namespace tautline::kernels {

/// A [T, H, D] view; strides in elements, the last one is 1.
struct HeadsView {
  void* data = nullptr;
  int64_t token_stride = 0, head_stride = 0;
};

struct JaggedAttention {
  HeadsView q, k, v;                   // [Tq, H, D], [Tk, H, D], [Tk, H, D]
  HeadsView o;                         // [Tq, H, D]: written by the forward
  float* lse = nullptr;                // [H, Tq]: written by the forward
  const int64_t* q_offsets = nullptr;  // [B + 1]; on the device for CUDA
  const int64_t* k_offsets = nullptr;  // [B + 1]
  int64_t sequences = 0, heads = 0, head_dim = 0;
  int64_t q_tokens = 0, k_tokens = 0;  // Tq, Tk
  int64_t max_q = 0, max_k = 0;        // longest sequence
  bool causal = false;
  double scale = 1.0;
  Element element = Element::kFloat32;  // of q, k, v, o and their gradients
  // Backward: reads everything above and d_o, writes the rest.
  HeadsView d_o, d_q, d_k, d_v;
  void* stream = nullptr;
};

void jagged_attention_forward_ref(const JaggedAttention& p);
void jagged_attention_backward_ref(const JaggedAttention& p);

/// Tasks [begin, end) of sequences * heads; task = sequence * heads + head. Any split over threads
/// gives the same bits.
TAUTLINE_ISA_KERNEL(void jagged_attention_forward_cpu(const JaggedAttention& p, int64_t begin,
                                                      int64_t end),
                    jagged_attention_forward_cpu(p, begin, end))
TAUTLINE_ISA_KERNEL(void jagged_attention_backward_cpu(const JaggedAttention& p, int64_t begin,
                                                       int64_t end),
                    jagged_attention_backward_cpu(p, begin, end))

void jagged_attention_forward_cuda(const JaggedAttention& p);
void jagged_attention_backward_cuda(const JaggedAttention& p);

}  // namespace tautline::kernels
