// From a problem to a launch of attention_forward_sm90.cuh.
#pragma once

#include <algorithm>

#include "tautline/kernels/attention_forward_sm90.cuh"
#include "tautline/kernels/hopper_map.h"
#include "tautline/kernels/launch.cuh"

namespace tautline::kernels::sm90 {

/// Bounds beyond every sequence are none.
inline int32_t bound_of(int64_t bound) {
  constexpr int64_t kFar = int64_t{1} << 29;
  return bound < 0 || bound > kFar ? -1 : static_cast<int32_t>(bound);
}

template <class C>
void launch_forward(const AttentionProblem& p, const AttentionOrder& order, double scale,
                    double finish, float* lse) {
  ForwardArguments a;
  const bool seeds = p.q_offsets == nullptr;
  const int64_t q_tokens = seeds ? p.max_q : p.rows;
  a.q = hopper::tensor_map(p.q, p.element, q_tokens, p.heads, C::kDim, kRows);
  a.k = hopper::tensor_map(p.k, p.element, p.k_tokens, p.kv_heads, C::kDim, C::kKeys);
  a.v = hopper::tensor_map(p.v, p.element, p.k_tokens, p.kv_heads, C::kDim, C::kKeys);
  a.o = hopper::tensor_map(p.o, p.element, p.rows, p.heads, C::kDim, 16);
  a.lse = lse;
  a.q_offsets = p.q_offsets;
  a.k_offsets = p.k_offsets;
  a.order = order;
  a.rows = p.rows;
  a.heads = static_cast<int32_t>(p.heads);
  a.group = static_cast<int32_t>(p.heads / p.kv_heads);
  a.seeds = seeds ? static_cast<int32_t>(p.max_q) : 0;
  a.left = bound_of(p.window.left);
  a.right = bound_of(p.window.right);
  a.scale = static_cast<float>(scale);
  a.finish = static_cast<float>(finish);
  auto* kernel = attention_forward<C>;
  constexpr int kBytes = sizeof(typename C::Shared) + 1024;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "shared memory of the attention forward");
  kernel<<<multiprocessors(), C::kThreads, kBytes, stream_of(p.stream)>>>(a);
  check_launch("attention forward");
}

}  // namespace tautline::kernels::sm90
