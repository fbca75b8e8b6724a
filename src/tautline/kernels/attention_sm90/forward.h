// The Hopper (sm_90a) forward of attention.h and gdpa.h: bf16 and fp16, head dimensions up to 128 that
// are multiples of 8, windows, grouped heads, broadcast queries, no additive bias. The kernels have 64
// or 128 columns of keys and 64 or 128 of values; columns beyond a problem's are zeros. What
// attention_forward_sm90_refuses goes to attention_portable*.cu.
#pragma once

#include <cstdint>

#include "tautline/kernels/attention.h"
#include "tautline/kernels/attention_order.h"
#include "tautline/kernels/gdpa.h"

namespace tautline::kernels {

/// Why the forward does not take the problem; null where it does. It looks at shapes, strides,
/// addresses and `scale` (of softmax; 1 for gdpa), not at the device.
const char* attention_forward_sm90_refuses(const AttentionProblem& p, double scale);

/// The order that the forward wants: of tiles that are pairs of a late and an early run of queries.
AttentionOrderRequest attention_forward_sm90_order(const AttentionProblem& p);

void jagged_attention_forward_sm90(const JaggedAttention& p, const AttentionOrder& order);

/// `fast`: SiLU and GELU (tanh) by tanh.approx.f32, which is off by at most 2^-11 (PTX ISA), so
/// that f(s) is off by at most 2^-12 |s|.
void gdpa_forward_sm90(const Gdpa& p, const AttentionOrder& order, bool fast);

}  // namespace tautline::kernels
