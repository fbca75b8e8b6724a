// The tensor that keeps a batch's tile orders (kernels/attention_order.h) for the Hopper kernels, the
// forward's and the backward's, so that they are made once a batch for all layers.
//
// int32 [2 + Nq + Nk, 2]: a row (tiles, rows of a tile), then room for Nq tiles (sequence, tile) of
// the forward, by queries; a row and Nk tiles of the backward, by keys. Nq and Nk are what tiles of
// 64 rows would need at most, so that the shape does not depend on the device. Heads of more than 64
// columns have tiles of another size: an empty row more at the end tells them apart.
#pragma once

#include "tautline/kernels/attention_order.h"
#include "tautline/ops/attention_arguments.h"
#include "tautline/ops/ops.h"

namespace tautline::ops {

/// The order in which the Hopper kernels take the tiles of a batch (kernels/attention_order.h), for
/// AttentionOptions::order: made once a batch, used in all layers, forward and backward, of equal
/// windows and shapes. q_rows: Tq, or B * S without q_offsets; head_dim: the wider of keys' and
/// values'. -> int32, opaque; the CPU's kernels do not look at it.
Tensor attention_order(const OptionalTensor& q_offsets, const Tensor& k_offsets, int64_t q_rows,
                       int64_t k_rows, int64_t max_q, int64_t max_k, int64_t heads,
                       int64_t kv_heads, int64_t head_dim, bool causal, int64_t window_left = -1,
                       int64_t window_right = -1);

/// The pass's part of `order`, or (none given) an order made here, which `memory` then keeps.
/// UserError where the order's shape is not that of the problem. CUDA only.
kernels::AttentionOrder order_of(const kernels::AttentionProblem& p, kernels::AttentionPass pass,
                                 const OptionalTensor& order, Tensor& memory);

}  // namespace tautline::ops
