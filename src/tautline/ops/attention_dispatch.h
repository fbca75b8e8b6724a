// Which CUDA kernel computes a problem of jagged_attention or gdpa: the fastest that takes it.
//   sm90      ours for Hopper (kernels/attention_sm90/forward.h)
//   flash2    libtorch's FlashAttention-2: softmax, and no more than causality
//   portable  ours for every card from sm_80 (kernels/attention_portable.cuh): takes everything
#pragma once

#include "tautline/kernels/attention.h"
#include "tautline/kernels/gdpa.h"
#include "tautline/ops/attention_arguments.h"

namespace tautline::ops {

enum class AttentionKernel { kSm90, kFlash2, kPortable };

struct AttentionChoice {
  AttentionKernel kernel;
  std::string not_sm90, not_flash2;  // why the faster ones do not take it; empty: they do
};

/// scale: of softmax, 0 or more; gdpa's alpha does not matter. capability: 10 * major + minor of the
/// device. p.o is set.
AttentionChoice forward_choice(const kernels::AttentionProblem& p, bool softmax, double scale,
                               int capability);
/// FlashAttention-2's backward goes with its forward: it wants its own row statistics. p.d_o is set,
/// and for softmax p.o.
AttentionChoice backward_choice(const kernels::AttentionProblem& p, bool softmax, double scale,
                                int capability);
std::string describe(const AttentionChoice& choice);

/// Of the device of `x`; 0 on the CPU.
int capability_of(const Tensor& x);

/// libtorch's FlashAttention-2: (o, lse), and the gradients.
std::tuple<Tensor, Tensor> flash_forward(const AttentionArguments& a, double scale);
AttentionGradients flash_backward(const AttentionArguments& a, const Tensor& d_o, const Tensor& o,
                                  const Tensor& lse, double scale);

/// Our own kernels: sm90 or portable. Work memory and, where none was given, the order of the tiles
/// come from libtorch's allocator.
void attention_forward_cuda(kernels::JaggedAttention& p, const AttentionArguments& a);
void attention_backward_cuda(kernels::JaggedAttention& p, const AttentionArguments& a);
/// fast: see kernels/attention_sm90/forward.h; the portable kernel has no such form and is exact.
void gdpa_forward_cuda(kernels::Gdpa& p, const AttentionArguments& a, bool fast);
void gdpa_backward_cuda(kernels::Gdpa& p, const AttentionArguments& a, bool fast);

}  // namespace tautline::ops
