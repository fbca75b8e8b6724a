// The Hopper (sm_90a) kernels of attention.h and gdpa.h: bf16 and fp16, head dimensions 64 and 128,
// no additive bias. attention_sm90_supports says what they take; attention_portable.cu takes the rest.
#pragma once

#include <cstdint>

#include "tautline/kernels/attention.h"
#include "tautline/kernels/attention_order.h"
#include "tautline/kernels/gdpa.h"

namespace tautline::kernels {

/// Null where the Hopper forward takes the problem, else why not.
const char* attention_forward_sm90_refuses(const AttentionProblem& p);

/// Queries of an order's tile, to be asked before the order is made.
int32_t attention_forward_sm90_tile(const AttentionProblem& p, bool softmax);

void jagged_attention_forward_sm90(const JaggedAttention& p, const AttentionOrder& order);

/// `fast`: SiLU and GELU through tanh.approx.f32, whose error is at most 2^-11 (PTX ISA): f is off
/// by at most 2^-12 |s|.
void gdpa_forward_sm90(const Gdpa& p, const AttentionOrder& order, bool fast);

}  // namespace tautline::kernels
