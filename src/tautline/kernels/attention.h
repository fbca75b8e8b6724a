// Softmax attention over jagged sequences: o_i = sum_j softmax_j(scale * q_i . k_j + bias_ij) v_j,
// where i and j are tokens of the same sequence and j is in the window of i. Shapes, windows,
// grouped heads, broadcast queries, bias: attention_problem.h.
//
// Flash attention (Dao et al. 2022, algorithm 1): scores never reach memory; the forward saves one
// number a row, lse = log sum exp, from which the backward recomputes the probabilities.
// A query that sees no key gets o = 0 and lse = -inf.
// Precision: FP32 accumulation; CPU elements are FP32.
#pragma once

#include <cstdint>

#include "tautline/kernels/attention_problem.h"
#include "tautline/kernels/isa.h"

namespace tautline::kernels {

struct JaggedAttention : AttentionProblem {
  float* lse = nullptr;  // [H, rows]: written by the forward
  double scale = 1.0;
  float* delta = nullptr;  // [H, rows]: CUDA's backward keeps d_o . o here
};

void jagged_attention_forward_ref(const JaggedAttention& p);
void jagged_attention_backward_ref(const JaggedAttention& p);  // with its finish, but for d_q

/// Tasks [begin, end) of sequences * kv_heads; task = sequence * kv_heads + kv_head. Any split over
/// threads gives the same bits.
TAUTLINE_ISA_KERNEL(void jagged_attention_forward_cpu(const JaggedAttention& p, int64_t begin,
                                                      int64_t end),
                    jagged_attention_forward_cpu(p, begin, end))
TAUTLINE_ISA_KERNEL(void jagged_attention_backward_cpu(const JaggedAttention& p, int64_t begin,
                                                       int64_t end),
                    jagged_attention_backward_cpu(p, begin, end))

/// d_position and d_time from the partial sums of all sequences, added in their order; after the
/// backward of attention or gdpa. Table rows [begin, end) of position_tables + time_tables.
TAUTLINE_ISA_KERNEL(void attention_bias_finish_cpu(const AttentionProblem& p, int64_t begin,
                                                   int64_t end),
                    attention_bias_finish_cpu(p, begin, end))

/// sum[c] = partial[0][c] + partial[1][c] + ... for columns [begin, end) of [parts, columns]:
/// the gradient of queries that stand in for every sequence.
TAUTLINE_ISA_KERNEL(void broadcast_query_finish_cpu(const float* partial, int64_t parts,
                                                    int64_t columns, float* sum, int64_t begin,
                                                    int64_t end),
                    broadcast_query_finish_cpu(partial, parts, columns, sum, begin, end))

/// q, k, v, o and gradients bf16 or fp16, D and E to 256 (attention_portable_*.cu). Where q_offsets is
/// null, d_q is FP32.
void jagged_attention_forward_cuda(const JaggedAttention& p);
void jagged_attention_backward_cuda(const JaggedAttention& p);
void attention_bias_finish_cuda(const AttentionProblem& p);
void broadcast_query_finish_cuda(const float* partial, int64_t parts, int64_t columns, float* sum,
                                 void* stream);

}  // namespace tautline::kernels
