// The kernel of backward.h for few queries: one tile of them a sequence, so keys and values are read once
// and d_k, d_v written once: bound by memory, if loads and stores never wait for each other.
//
// A CTA takes a sequence and head, its d_q in registers, and walks its keys, 64 a step:
//   S^T = K Q^T    dP^T = V dO^T    dV = P^T dO    dK = dS^T Q    dQ += dS K
// One warpgroup loads (single threads), one multiplies; two CTAs share a multiprocessor, so one's products
// run under the other's elements. d_v and d_k leave through the memory of the values and keys that they
// belong to, by TMA. A CTA has one head, and of the list what is dealt to it zigzag, as in the forward: where
// the queries stand in for all sequences, it adds up their d_q, those of kMostTogether sequences in products
// (whose sums may be rounded towards 0), then in memory. The rest is as in backward.cuh.
#pragma once

#include <algorithm>
#include <cutlass/arch/reg_reconfig.h>

#include "tautline/kernels/attention_sm90/backward_few_consume.cuh"
#include "tautline/kernels/attention_sm90/backward_few_load.cuh"
#include "tautline/kernels/hopper_map.h"
#include "tautline/kernels/launch.cuh"

namespace tautline::kernels::sm90 {

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kCtas)
    attention_backward_few(const __grid_constant__ BackwardArguments p,
                           const __grid_constant__ BackwardMaps maps) {
  extern __shared__ char raw[];
  auto& s = *reinterpret_cast<typename C::Shared*>(raw);
  if (threadIdx.x == 0) {
    FullBarrier::init(&s.full_q, 1), EmptyBarrier::init(&s.empty_q, 4);
    for (int i = 0; i < C::kStages; ++i) {
      FullBarrier::init(s.full_k + i, 1), EmptyBarrier::init(s.empty_k + i, 4);
      FullBarrier::init(s.full_v + i, 1), EmptyBarrier::init(s.empty_v + i, 4);
    }
    cutlass::arch::fence_barrier_init();
  }
  if (C::Scores::kRows) put_scales(s.scales);
  __syncthreads();
  if (cutlass::canonical_warp_group_idx() == 0) {
    cutlass::arch::warpgroup_reg_dealloc<C::kLoadRegisters>();
    const int warp = cutlass::canonical_warp_idx_sync();
    if (warp < 2 && cute::elect_one_sync()) {
      if (warp == 0)
        load_keys<C>(s, p, maps);
      else
        load_queries<C>(s, p, maps);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<C::kRegisters>();
    consume_few<C>(s, p, maps);
  }
}

template <class C>
void launch_backward_few(const AttentionSm90Backward& p) {
  const cudaStream_t stream = stream_of(p.stream);
  const BackwardWorkspace w = backward_workspace(p);
  backward_rows(p, static_cast<char*>(p.workspace) + w.terms);
  const auto map = [&](const HeadsView& x, int64_t tokens, int width, int rows) {
    return hopper::tensor_map(x, p.element, tokens, p.heads, width, rows);
  };
  const BackwardMaps maps{map(p.q, p.q_offsets ? p.rows : p.max_q, p.head_dim, C::kM),
                          map(p.d_o, p.rows, p.value_dim, C::kM),
                          map(p.k, p.k_tokens, p.head_dim, C::kN),
                          map(p.v, p.k_tokens, p.value_dim, C::kN),
                          map(p.d_k, p.k_tokens, p.head_dim, 16),
                          map(p.d_v, p.k_tokens, p.value_dim, 16)};
  auto* kernel = attention_backward_few<C>;
  constexpr int kBytes = sizeof(typename C::Shared);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "cudaFuncSetAttribute");
  static_assert(C::kCtas == kFewCtas);
  const int64_t ctas = std::min(int64_t{C::kCtas} * p.ctas, few_ranks(p) * p.heads);
  kernel<<<static_cast<unsigned>(ctas), C::kThreads, kBytes, stream>>>(arguments_of(p, w), maps);
  check_launch("attention backward of few queries");
}

}  // namespace tautline::kernels::sm90
