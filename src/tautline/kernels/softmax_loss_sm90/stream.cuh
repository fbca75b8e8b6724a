// The kernel of both passes of loss.h: acc += f(X Y^T) Y. Tiles X of 64 vectors stay, one with each
// warpgroup; blocks Y stream through a ring in shared memory that all of them read. F says what
// scores become (rows.cuh, items.cuh).
//
// Warpgroups never wait for each other: one finds exponentials while another multiplies. Within
// one, the exponentials of a block are found under the last block's second product.
#pragma once

#include "tautline/kernels/mma.cuh"
#include "tautline/kernels/softmax_loss_sm90/config.cuh"

namespace tautline::kernels::softmax_sm90 {

using namespace hopper;

/// Parts of 64 columns that are loaded. Those wholly beyond the width are zeros from the start: a
/// load of nothing but such columns has been seen to fault.
template <class C>
__device__ __forceinline__ int parts_of(const PassArguments& p) {
  return C::kD == 256 ? (p.width + 63) / 64 : C::kD / 64;
}
template <class C>
__device__ __forceinline__ void clear_parts(typename C::Shared& s, const PassArguments& p) {
  const auto clear = [&](char* x, int rows) {
    for (int i = parts_of<C>(p) * rows * 8 + threadIdx.x; i < C::kD / 64 * rows * 8;
         i += C::kThreads)
      reinterpret_cast<uint4*>(x)[i] = uint4{0, 0, 0, 0};
  };
  for (int i = 0; i < C::kGroups * C::kSlots; ++i) clear(s.stay[0][0] + i * C::kTileBytes, kTile);
  for (int i = 0; i < C::kStages; ++i) clear(s.stream[i], C::kN);
  fence_async_shared();
}

/// One thread: loads tiles, and blocks with `more` bytes of corrections.
template <class C>
__device__ __forceinline__ void produce(typename C::Shared& s, const PassArguments& p,
                                        uint32_t more) {
  constexpr int kN = C::kN;
  const Work work(p.plan, C::kGroups);
  const int parts = parts_of<C>(p);
  Cursor<C::kStages> at;
  Cursor<C::kSlots> slot[C::kGroups];
  const auto load_tiles = [&](int32_t round) {
    const int32_t first = work.first(round), count = work.count(round);
#pragma unroll
    for (int g = 0; g < C::kGroups; ++g) {
      if (g >= count) continue;
      const int to = slot[g].stage;
      barrier_wait(&s.empty_stay[g][to], slot[g].phase ^ 1);
      barrier_expect(&s.full_stay[g][to], parts * kTile * 128);
      const int32_t begin = (first + g) * kTile, some = min(kTile, p.stay_count - begin);
#pragma unroll
      for (int c = 0; c < C::kD / 64; ++c) {
        if (c >= parts) break;
        tma_load(&p.stay, &s.full_stay[g][to], s.stay[g][to] + c * kTile * 128, 64 * c,
                 kTile - some, begin + some, 0);
      }
      slot[g].next();
    }
  };
  for (int32_t round = 0; round < work.rounds; ++round)
    for (int32_t n = work.begin; n < work.end; ++n) {
      barrier_wait(&s.empty_stream[at.stage], at.phase ^ 1);
      uint64_t* full = &s.full_stream[at.stage];
      barrier_expect(full, parts * kN * 128 + more);
      const int32_t begin = n * kN, some = min(kN, p.stream_count - begin);
#pragma unroll
      for (int c = 0; c < C::kD / 64; ++c) {
        if (c >= parts) break;
        tma_load(&p.stream, full, s.stream[at.stage] + c * kN * 128, 64 * c, kN - some,
                 begin + some, 0);
      }
      bulk_load(&s.corrections[at.stage], p.corrections + n * sizeof(Corrections<kN>), more, full);
      at.next();
      if (n == work.begin) load_tiles(round);  // behind a block: their places may not be free yet
    }
}

template <class C, class F>
__device__ __forceinline__ void consume(typename C::Shared& s, const PassArguments& p, int group) {
  using E = typename C::Element;
  constexpr int kN = C::kN, kD = C::kD, kStages = C::kStages;
  const int lane = threadIdx.x % 32;
  float scores[kN / 2], sum[kD / 2];
  uint32_t weights[kN / 4], stay[C::kInRegisters ? kD / 16 : 1][4];
  const Work work(p.plan, C::kGroups);
  Cursor<kStages> at;
  Cursor<C::kSlots> slot;
  F f(p);

  const auto release = [&](int stage) {
    if (lane == 0) barrier_arrive(&s.empty_stream[stage]);
  };
  const auto multiply_scores = [&] {
    const Tile x(s.stay[group][slot.stage]), y(s.stream[at.stage]);
    hold(scores);
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < kD / 16; ++d) {
      const bool add = d > 0 || F::kStart != Start::kZero;
      const uint64_t right = y.at(d / 4 * kN * 128 + d % 4 * 32);
      if constexpr (C::kInRegisters)
        mma_registers_shared<E, kN>(stay[d], right, scores, add);
      else
        mma_shared<E, kN>(x.at(d / 4 * kTile * 128 + d % 4 * 32), right, scores, add);
    }
    wgmma_commit();
  };
  const auto multiply_weights = [&](int stage) {
    const Tile y(s.stream[stage], kN * 128);
    hold(sum);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < kN / 16; ++n)
      mma_registers<E, kD>(weights + 4 * n, y.at(n * 16 * 128), sum, true);
    wgmma_commit();
  };
  const auto round_weights = [&] {
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) weights[i] = pack<E>(scores[2 * i], scores[2 * i + 1]);
  };
  const auto await_block = [&] { barrier_wait(&s.full_stream[at.stage], at.phase); };
  const auto take_tile = [&] {
    barrier_wait(&s.full_stay[group][slot.stage], slot.phase);
    if constexpr (C::kInRegisters)
#pragma unroll
      for (int d = 0; d < kD / 16; ++d)
        mma::left<kD>(stay[d], shared_address(s.stay[group][slot.stage]), threadIdx.x % 128 / 32, d,
                      lane);
  };
  const auto scores_alone = [&] {  // of a block that has come
    f.start(s.corrections[at.stage], scores);
    multiply_scores();
    wgmma_wait<0>();
    hold(scores);
  };
  float factor[2];

  for (int32_t round = 0; round < work.rounds; ++round) {
    if (group >= work.count(round)) {
      for (int32_t n = work.begin; n < work.end; ++n, at.next()) {
        await_block();
        __syncwarp();  // no lane may fall behind what the first one releases
        release(at.stage);
      }
      continue;
    }
    f.begin(p, (work.first(round) + group) * kTile);
#pragma unroll
    for (float& x : sum) x = 0;  // a flag in the first product costs registers
    await_block();
    take_tile();
    if constexpr (F::kProduct) {
      scores_alone();
      f.weigh(s.corrections[at.stage], scores, factor);
      round_weights();
      int last = at.stage;
      at.next();
      if (work.begin + 1 < work.end) await_block();
#pragma unroll 1
      for (int32_t n = work.begin + 1; n < work.end; ++n) {
        f.start(s.corrections[at.stage], scores);
        multiply_scores();
        multiply_weights(last);
        wgmma_wait<1>();
        hold(scores);
        const bool grew = f.weigh(s.corrections[at.stage], scores, factor);
        // Exponentials are found under the product, and rounded (its operands are these registers)
        // after it. The wait for the next block keeps them apart: ptxas moves the wait for the
        // product up to the last branch.
        hold(scores);
        const int now = at.stage;
        at.next();
        if (n + 1 < work.end) await_block();
        wgmma_wait<0>();
        hold(sum);
        hold(scores);
        release(last);
        last = now;
        if (F::kRescales && grew)
#pragma unroll
          for (int i = 0; i < kD / 2; ++i) sum[i] *= factor[i / 2 % 2];
        round_weights();
      }
      if (lane == 0) barrier_arrive(&s.empty_stay[group][slot.stage]);
      multiply_weights(last);
      wgmma_wait<0>();
      hold(sum);
      release(last);
    } else {
#pragma unroll 1
      for (int32_t n = work.begin; n < work.end; ++n) {
        scores_alone();
        f.weigh(s.corrections[at.stage], scores, factor);
        release(at.stage);
        at.next();
        if (n + 1 < work.end) await_block();
      }
      if (lane == 0) barrier_arrive(&s.empty_stay[group][slot.stage]);
    }
    slot.next();
    f.finish(p, work.split, sum);
  }
}

template <class C, class F>
__global__ void __launch_bounds__(C::kThreads, 1)
    softmax_pass(const __grid_constant__ PassArguments p) {
  extern __shared__ char raw[];
  auto& s = *reinterpret_cast<typename C::Shared*>(raw + (-shared_address(raw) & 1023));
  if (threadIdx.x == 0) {
    for (int g = 0; g < C::kGroups; ++g)
      for (int i = 0; i < C::kSlots; ++i)
        barrier_init(&s.full_stay[g][i], 1), barrier_init(&s.empty_stay[g][i], 4);
    for (int i = 0; i < C::kStages; ++i)
      barrier_init(&s.full_stream[i], 1), barrier_init(&s.empty_stream[i], 4 * C::kGroups);
    barrier_init_fence();
    tma_prefetch_map(&p.stay);
    tma_prefetch_map(&p.stream);
  }
  if constexpr (C::kD == 256) clear_parts<C>(s, p);
  __syncthreads();
  const int group = static_cast<int>(__shfl_sync(0xffffffffu, threadIdx.x / 128, 0));
  if (group == C::kGroups) {
    registers_down<C::kProducerRegisters>();
    if (threadIdx.x == C::kGroups * 128) produce<C>(s, p, correction_bytes<C::kN>(F::kStart));
  } else {
    registers_up<C::kConsumerRegisters>();
    consume<C, F>(s, p, group);
  }
}

}  // namespace tautline::kernels::softmax_sm90
