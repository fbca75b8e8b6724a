// Launches forward.cuh.
#pragma once

#include <algorithm>

#include "tautline/kernels/attention_sm90/forward.cuh"
#include "tautline/kernels/attention_sm90/forward_launch.h"
#include "tautline/kernels/hopper_map.h"
#include "tautline/kernels/launch.cuh"

namespace tautline::kernels::sm90 {

/// Bounds beyond every sequence are none.
inline int32_t bound_of(int64_t bound) {
  constexpr int64_t kFar = int64_t{1} << 29;
  return bound < 0 || bound > kFar ? -1 : static_cast<int32_t>(bound);
}

/// What was fastest on the shapes of the bench; lab/attention/README.md has the rest.
template <class E, int kKeyDim, int kValueDim, class Score>
using ForwardChoice =
    ForwardConfig<E, kKeyDim, kValueDim, 64, std::max(kKeyDim, kValueDim) == 128 ? 3 : 4, 2, Score>;

template <class C>
void launch_forward(const Forward& f) {
  const AttentionProblem& p = f.p;
  ForwardArguments a;
  const bool seeds = p.q_offsets == nullptr;
  const int64_t q_tokens = seeds ? p.max_q : p.rows;
  // Columns beyond the widths of keys and values are read as zeros and not written.
  a.q = hopper::tensor_map(p.q, p.element, q_tokens, p.heads, p.head_dim, kRows);
  a.k = hopper::tensor_map(p.k, p.element, p.k_tokens, p.kv_heads, p.head_dim, C::kKeys);
  a.v = hopper::tensor_map(p.v, p.element, p.k_tokens, p.kv_heads, p.value_dim, C::kKeys);
  a.o = hopper::tensor_map(p.o, p.element, p.rows, p.heads, p.value_dim, kWarpRows);
  a.lse = f.lse;
  a.q_offsets = p.q_offsets;
  a.k_offsets = p.k_offsets;
  a.order = f.order;
  a.rows = p.rows;
  a.heads = static_cast<int32_t>(p.heads);
  a.group = static_cast<int32_t>(p.heads / p.kv_heads);
  a.seeds = seeds ? static_cast<int32_t>(p.max_q) : 0;
  a.head_dim = static_cast<int32_t>(p.head_dim);
  a.value_dim = static_cast<int32_t>(p.value_dim);
  a.left = bound_of(p.window.left);
  a.right = bound_of(p.window.right);
  a.numbers = f.numbers;
  auto* kernel = attention_forward<C>;
  constexpr int kBytes = sizeof(typename C::Shared) + 1024;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "shared memory of the attention forward");
  kernel<<<multiprocessors(), C::kThreads, kBytes, stream_of(p.stream)>>>(a);
  check_launch("attention forward");
}

template <class C>
void launch_as_ordered(const Forward& f) {
  static_assert(C::kTile == kForwardTile<std::max(C::kKeyDim, C::kValueDim)>);
  launch_forward<C>(f);
}

template <class E, int kKeyDim, class Score>
void forward_of_keys(const Forward& f) {
  f.p.value_dim <= 64 ? launch_as_ordered<ForwardChoice<E, kKeyDim, 64, Score>>(f)
                      : launch_as_ordered<ForwardChoice<E, kKeyDim, 128, Score>>(f);
}
template <class E, class Score>
void forward_of(const Forward& f) {
  f.p.head_dim <= 64 ? forward_of_keys<E, 64, Score>(f) : forward_of_keys<E, 128, Score>(f);
}
template <class Score>
void forward_with(const Forward& f) {
  f.p.element == Element::kFloat16 ? forward_of<__half, Score>(f)
                                   : forward_of<__nv_bfloat16, Score>(f);
}

}  // namespace tautline::kernels::sm90
