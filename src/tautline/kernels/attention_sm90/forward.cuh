// Attention forward for Hopper. A persistent CTA has one producer thread, which loads tiles with TMA,
// and kGroups warpgroups, each of which owns 64 queries at a time and multiplies with wgmma.
//
// The producer turns the CTA's tiles into passes: 64 * kGroups queries of one head and the blocks of
// kKeys keys that any of them sees. A warpgroup multiplies only the blocks that its own 64 queries
// see and lets the others go by; it waits for no other warpgroup, so one's exponentials run under
// another's products, and one may be passes ahead: rows are dealt to the warpgroups in turn, whether
// passes are full or not. A tile of the order is two passes, one from either end of the sequence, so
// that most tiles of a causal sequence weigh the same and stand side by side in the order, where
// neighbours find its keys in L2. Where the keys of both fit in shared memory they are loaded once.
//
// Tensor maps end at each sequence's end (hopper_map.h), so tails are zeros: rows of other samples
// are never read, and stores of partial tiles are clipped.
#pragma once

#include "tautline/kernels/attention_sm90/forward_consume.cuh"
#include "tautline/kernels/attention_sm90/forward_produce.cuh"

namespace tautline::kernels::sm90 {

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_forward(const __grid_constant__ ForwardArguments p) {
  extern __shared__ char raw[];
  auto& s = *reinterpret_cast<typename C::Shared*>(raw + (-hopper::shared_address(raw) & 1023));
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kDepth; ++i) {
      hopper::barrier_init(&s.full_pass[i], 1);
      hopper::barrier_init(&s.empty_pass[i], 4 * C::kGroups);
    }
    for (int i = 0; i < C::kSlots; ++i) hopper::barrier_init(&s.empty_q[i], 4);
    for (int i = 0; i < C::kStages; ++i) {
      hopper::barrier_init(&s.full_k[i], 1);
      hopper::barrier_init(&s.full_v[i], 1);
      hopper::barrier_init(&s.empty_k[i], 4 * C::kGroups);
      hopper::barrier_init(&s.empty_v[i], 4 * C::kGroups);
    }
    hopper::barrier_init_fence();
  }
  __syncthreads();
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
  if (group == 0) {
    hopper::registers_down<C::kProducerRegisters>();
    if (threadIdx.x == 0) produce<C>(p, s);
  } else {
    hopper::registers_up<C::kConsumerRegisters>();
    consume<C>(p, s, group - 1);
  }
}

}  // namespace tautline::kernels::sm90
