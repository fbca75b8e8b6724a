#include "tautline/ops/attention_dispatch.h"

#ifdef TAUTLINE_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/zeros.h>

#include "tautline/kernels/attention_sm90/backward.h"
#include "tautline/kernels/attention_sm90/forward.h"
#include "tautline/ops/attention_order.h"

namespace tautline::ops {
namespace {

using kernels::AttentionPass;
using kernels::AttentionProblem;

std::string flash2_refuses(const AttentionProblem& p, bool softmax) {
  if (!softmax) return "not a softmax";
  if (p.q_offsets == nullptr) return "queries stand in for every sequence";
  if (p.heads != p.kv_heads) return "grouped heads";
  if (p.head_dim != p.value_dim) return "values of another width than keys";
  if (p.head_dim % 8 != 0) return "a head dimension that 8 does not divide";
  if (p.bias.any()) return "a bias";
  if (p.window.left >= 0 || p.window.right > 0) return "a window";
  if (p.rows == 0 || p.k_tokens == 0) return "nothing to do";
  return "";
}

std::string sm90_forward_refuses(const AttentionProblem& p, bool softmax, double scale,
                                 int capability) {
  if (capability != 90) return "not a Hopper card";
  if (p.rows == 0 || p.k_tokens == 0) return "nothing to do";
  if constexpr (kCudaBuild) {
    const char* why = kernels::attention_forward_sm90_refuses(p, softmax ? scale : 1.0);
    return why ? why : "";
  }
  return "a build for the CPU";
}

std::string sm90_backward_refuses(const AttentionProblem& p, bool softmax, double scale,
                                  int capability) {
  AttentionProblem forward = p;
  if (!forward.o.data) forward.o = p.d_o;  // gdpa keeps no o
  std::string why = sm90_forward_refuses(forward, softmax, scale, capability);
  if (!why.empty()) return why;
  if constexpr (kCudaBuild) {
    if (const char* reason = kernels::attention_backward_sm90_refuses(p)) return reason;
  }
  return "";
}

AttentionChoice choice_of(std::string not_sm90, std::string not_flash2) {
  const AttentionKernel kernel = not_sm90.empty()     ? AttentionKernel::kSm90
                                 : not_flash2.empty() ? AttentionKernel::kFlash2
                                                      : AttentionKernel::kPortable;
  return {kernel, std::move(not_sm90), std::move(not_flash2)};
}

int multiprocessors_of(const Tensor& x) {
#ifdef TAUTLINE_CUDA
  return at::cuda::getDeviceProperties(x.get_device())->multiProcessorCount;
#else
  return 0;
#endif
}

[[maybe_unused]] void backward_sm90(AttentionProblem& p, const AttentionArguments& a,
                                    kernels::AttentionSm90Backward& b) {
  b.q = p.q, b.k = p.k, b.v = p.v, b.d_o = p.d_o, b.d_q = p.d_q, b.d_k = p.d_k, b.d_v = p.d_v;
  b.q_offsets = p.q_offsets;
  b.k_offsets = p.k_offsets;
  b.sequences = p.sequences;
  b.rows = p.rows;
  b.k_tokens = p.k_tokens;
  b.max_q = p.max_q;
  b.max_k = p.max_k;
  b.heads = static_cast<int32_t>(p.heads);
  b.kv_heads = static_cast<int32_t>(p.kv_heads);
  b.head_dim = static_cast<int32_t>(p.head_dim);
  b.value_dim = static_cast<int32_t>(p.value_dim);
  b.whole = kernels::attention_backward_sm90_whole(p.head_dim, p.value_dim);
  b.window = p.window;
  b.element = p.element;
  b.ctas = multiprocessors_of(a.q);
  b.stream = p.stream;
  Tensor memory, workspace;
  const kernels::AttentionOrder order = order_of(p, AttentionPass::kKeys, a.order, memory);
  b.tiles = order.tiles;
  b.count = order.count;
  if constexpr (kCudaBuild) {
    p.query_parts = kernels::attention_backward_sm90_query_gradients(b);
    workspace =
        at::empty({kernels::attention_backward_sm90_workspace(b)}, a.q.options().dtype(at::kByte));
    b.workspace = workspace.mutable_data_ptr();
    kernels::attention_backward_sm90(b);
  }
}

}  // namespace

AttentionChoice forward_choice(const AttentionProblem& p, bool softmax, double scale,
                               int capability) {
  return choice_of(sm90_forward_refuses(p, softmax, scale, capability), flash2_refuses(p, softmax));
}

AttentionChoice backward_choice(const AttentionProblem& p, bool softmax, double scale,
                                int capability) {
  if (softmax && forward_choice(p, softmax, scale, capability).kernel == AttentionKernel::kFlash2)
    return choice_of("the forward was libtorch's", "");
  return choice_of(sm90_backward_refuses(p, softmax, scale, capability),
                   "the forward was another's");
}

std::string describe(const AttentionChoice& c) {
  switch (c.kernel) {
    case AttentionKernel::kSm90:
      return "sm90";
    case AttentionKernel::kFlash2:
      return "flash2 (not sm90: " + c.not_sm90 + ")";
    case AttentionKernel::kPortable:
      break;
  }
  return "portable (not sm90: " + c.not_sm90 + "; not flash2: " + c.not_flash2 + ")";
}

int capability_of(const Tensor& x) {
#ifdef TAUTLINE_CUDA
  if (x.is_cuda()) {
    const auto* properties = at::cuda::getDeviceProperties(x.get_device());
    return 10 * properties->major + properties->minor;
  }
#endif
  return 0;
}

std::tuple<Tensor, Tensor> flash_forward(const AttentionArguments& a, double scale) {
  auto [o, lse, rng, unused, debug] = at::_flash_attention_forward(
      a.q, a.k, a.v, a.q_offsets->to(at::kInt), a.k_offsets.to(at::kInt), a.max_q, a.max_k, 0.0,
      a.causal || a.window_right == 0, false, scale);
  return {o, lse};
}

AttentionGradients flash_backward(const AttentionArguments& a, const Tensor& d_o, const Tensor& o,
                                  const Tensor& lse, double scale) {
  const Tensor none = at::empty({0}, float_like(a.q));
  const Tensor rng = at::zeros({2}, a.q.options().dtype(at::kUInt64));
  const auto [d_q, d_k, d_v] = at::_flash_attention_backward(
      d_o.contiguous(), a.q, a.k, a.v, o, lse, a.q_offsets->to(at::kInt), a.k_offsets.to(at::kInt),
      a.max_q, a.max_k, 0.0, a.causal || a.window_right == 0, rng, at::empty({0}, a.q.options()),
      scale);
  return {d_q, d_k, d_v, none, none};
}

void attention_forward_cuda(kernels::JaggedAttention& p, const AttentionArguments& a) {
  const auto choice = forward_choice(p, /*softmax=*/true, p.scale, capability_of(a.q));
  if constexpr (kCudaBuild) {
    if (choice.kernel != AttentionKernel::kSm90) return kernels::jagged_attention_forward_cuda(p);
    Tensor memory;
    kernels::jagged_attention_forward_sm90(p,
                                           order_of(p, AttentionPass::kQueries, a.order, memory));
  }
}

void attention_backward_cuda(kernels::JaggedAttention& p, const AttentionArguments& a) {
  const auto choice = backward_choice(p, /*softmax=*/true, p.scale, capability_of(a.q));
  if constexpr (kCudaBuild) {
    if (choice.kernel == AttentionKernel::kSm90) {
      kernels::AttentionSm90Backward b;
      b.o = p.o;
      b.lse = p.lse;
      b.scale = static_cast<float>(p.scale);
      return backward_sm90(p, a, b);
    }
    const Tensor delta = at::empty({p.heads, p.rows}, float_like(a.q));
    p.delta = delta.mutable_data_ptr<float>();
    kernels::jagged_attention_backward_cuda(p);
  }
}

void gdpa_forward_cuda(kernels::Gdpa& p, const AttentionArguments& a, bool fast) {
  const auto choice = forward_choice(p, /*softmax=*/false, 0, capability_of(a.q));
  if constexpr (kCudaBuild) {
    if (choice.kernel != AttentionKernel::kSm90) return kernels::gdpa_forward_cuda(p);
    Tensor memory;
    kernels::gdpa_forward_sm90(p, order_of(p, AttentionPass::kQueries, a.order, memory), fast);
  }
}

void gdpa_backward_cuda(kernels::Gdpa& p, const AttentionArguments& a, bool fast) {
  const auto choice = backward_choice(p, /*softmax=*/false, 0, capability_of(a.q));
  if constexpr (kCudaBuild) {
    if (choice.kernel != AttentionKernel::kSm90) return kernels::gdpa_backward_cuda(p);
    kernels::AttentionSm90Backward b;
    b.softmax = false;
    b.activation = p.activation;
    b.fast = fast;
    b.scale = static_cast<float>(p.alpha);
    b.beta = static_cast<float>(p.beta);
    backward_sm90(p, a, b);
  }
}

}  // namespace tautline::ops
