// The kernel of backward.h. Four warpgroups: one of single threads that load tiles with TMA, all but
// values, and see to turns (backward_load.cuh), one for d_q (backward_queries.cuh), two of 64 keys each
// (backward_keys.cuh).
//
// A step is one tile of M queries against 128 keys; scores are transposed, keys by queries, so that
// P^T and dS^T are register operands of the products for d_v and d_k:
//   S^T = K Q^T    dP^T = V dO^T    dV += P^T dO    dK += dS^T Q     a warpgroup of keys
//   dQ = dS K                                                        the one of d_q
// lse and delta come with the products, as more columns (backward_terms.h): S^T and dP^T lack nothing
// when they are read. The warpgroups of keys never wait for each other: dS goes to the third through
// stages in shared memory. So one exponentiates while another multiplies. Registers are what there is
// least of: the scores' are dP's too and P's are dS's, so products come in two bunches, [dP, dV] and
// [dK, next S], each awaited before what reads it.
//
// M queries of a tile, D head dimension, E element type.
#pragma once

#include <cstdint>
#include <cutlass/arch/reg_reconfig.h>

#include "tautline/kernels/attention_sm90/backward_config.cuh"
#include "tautline/kernels/attention_sm90/backward_keys.cuh"
#include "tautline/kernels/attention_sm90/backward_load.cuh"
#include "tautline/kernels/attention_sm90/backward_queries.cuh"
#include "tautline/kernels/attention_sm90/backward_workspace.h"
#include "tautline/kernels/hopper_map.h"
#include "tautline/kernels/launch.cuh"

namespace tautline::kernels::sm90 {

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_backward(const __grid_constant__ BackwardArguments p,
                       const __grid_constant__ BackwardMaps maps) {
  extern __shared__ char raw[];
  auto& s = *reinterpret_cast<typename C::Shared*>(raw);
  if (threadIdx.x == 0) {
    const auto init = [](uint64_t* full, uint64_t* empty, int stages, int readers) {
      for (int i = 0; i < stages; ++i)
        FullBarrier::init(full + i, 1), EmptyBarrier::init(empty + i, readers);
    };
    // Readers: the warps that keep keys; of keys, those of d_q and who sees to turns too.
    init(s.full_k, s.empty_k, 2, 8 + 4 + 2);
    for (int i = 0; i < 2; ++i) FullBarrier::init(s.full_v + i, 4);
    init(s.full_q, s.empty_q, C::kQStages, 8);
    init(s.full_do, s.empty_do, C::kDoStages, 8);
    for (int i = 0; i < C::kDoStages; ++i) FullBarrier::init(s.full_terms + i, 1);
    for (int i = 0; i < C::kDsStages; ++i)
      EmptyBarrier::init(s.full_ds + i, 8), EmptyBarrier::init(s.empty_ds + i, 4);
    for (int i = 0; i < 2; ++i) {
      EmptyBarrier::init(s.turn + i, 1), EmptyBarrier::init(s.added + i, 4);
      EmptyBarrier::init(s.passed + i, 1);
    }
    cutlass::arch::fence_barrier_init();
  }
  if (C::Scores::kRows) put_scales(s.scales);
  __syncthreads();
  const int group = cutlass::canonical_warp_group_idx();
  if (group == 0) {
    cutlass::arch::warpgroup_reg_dealloc<24>();
    const int warp = cutlass::canonical_warp_idx_sync();
    if (warp < 3 && cute::elect_one_sync()) {
      if (warp == 0)
        produce<C>(s, p, maps);
      else if (warp == 1)
        await_turns<C>(s, p);
      else
        pass_turns<C>(s, p);
    }
  } else if (group == 1) {
    cutlass::arch::warpgroup_reg_dealloc<C::kQueryRegisters>();
    consume_queries<C>(s, p);
  } else {
    cutlass::arch::warpgroup_reg_alloc<C::kKeyRegisters>();
    consume_keys<C>(s, p, maps, group - 2);
  }
}

template <class C>
void launch_backward(const AttentionSm90Backward& p) {
  const cudaStream_t stream = stream_of(p.stream);
  const BackwardWorkspace w = backward_workspace(p);
  char* workspace = static_cast<char*>(p.workspace);
  const BackwardArguments a = arguments_of(p, w);
  check_cuda(cudaMemsetAsync(workspace, 0, w.turns_end, stream), "cudaMemsetAsync");
  backward_rows(p, workspace + w.terms);
  if (p.k_tokens == 0) return;

  const auto map = [&](const HeadsView& x, int64_t tokens, int heads, int width, int rows) {
    return hopper::tensor_map(x, p.element, tokens, heads, width, rows);
  };
  const BackwardMaps maps{map(p.q, p.q_offsets ? p.rows : p.max_q, p.heads, p.head_dim, C::kM),
                          map(p.d_o, p.rows, p.heads, p.value_dim, C::kM),
                          map(p.k, p.k_tokens, p.kv_heads, p.head_dim, C::kN),
                          map(p.v, p.k_tokens, p.kv_heads, p.value_dim, 16),
                          map(p.d_k, p.k_tokens, p.kv_heads, p.head_dim, 16),
                          map(p.d_v, p.k_tokens, p.kv_heads, p.value_dim, 16)};
  auto* kernel = attention_backward<C>;
  constexpr int kBytes = sizeof(typename C::Shared);
  static_assert(kBytes <= 232448);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "cudaFuncSetAttribute");
  kernel<<<p.ctas, C::kThreads, kBytes, stream>>>(a, maps);
  check_launch("attention backward");
}

}  // namespace tautline::kernels::sm90
