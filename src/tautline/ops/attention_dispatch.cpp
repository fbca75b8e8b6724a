#include "tautline/ops/attention_dispatch.h"

#ifdef TAUTLINE_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/zeros.h>

namespace tautline::ops {
namespace {

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

std::string sm90_refuses(const AttentionProblem& p, bool softmax, int capability) {
  if (capability != 90) return "not a Hopper card";
  return "no such kernel yet";
}

AttentionChoice choice_of(std::string not_sm90, std::string not_flash2) {
  const AttentionKernel kernel = not_sm90.empty()     ? AttentionKernel::kSm90
                                 : not_flash2.empty() ? AttentionKernel::kFlash2
                                                      : AttentionKernel::kPortable;
  return {kernel, std::move(not_sm90), std::move(not_flash2)};
}

}  // namespace

AttentionChoice forward_choice(const AttentionProblem& p, bool softmax, int capability) {
  return choice_of(sm90_refuses(p, softmax, capability), flash2_refuses(p, softmax));
}

AttentionChoice backward_choice(const AttentionProblem& p, bool softmax, int capability) {
  const bool flash2 = forward_choice(p, softmax, capability).kernel == AttentionKernel::kFlash2;
  return choice_of(sm90_refuses(p, softmax, capability), flash2 ? "" : "the forward was another's");
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
  if constexpr (kCudaBuild) kernels::jagged_attention_forward_cuda(p);
}

void attention_backward_cuda(kernels::JaggedAttention& p, const AttentionArguments& a) {
  const Tensor delta = at::empty({p.heads, p.rows}, float_like(a.q));
  p.delta = delta.mutable_data_ptr<float>();
  if constexpr (kCudaBuild) kernels::jagged_attention_backward_cuda(p);
}

void gdpa_forward_cuda(kernels::Gdpa& p, const AttentionArguments& a) {
  if constexpr (kCudaBuild) kernels::gdpa_forward_cuda(p);
}

void gdpa_backward_cuda(kernels::Gdpa& p, const AttentionArguments& a) {
  if constexpr (kCudaBuild) kernels::gdpa_backward_cuda(p);
}

}  // namespace tautline::ops
