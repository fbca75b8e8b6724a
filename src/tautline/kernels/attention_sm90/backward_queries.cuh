// The warpgroup of backward.cuh that multiplies dS by the keys: d_q.
#pragma once

#include "tautline/kernels/attention_sm90/backward_config.cuh"
#include "tautline/kernels/attention_sm90/backward_memory.cuh"

namespace tautline::kernels::sm90 {

/// d_q of each step, a half of a tile after the other, from dS that both warpgroups of keys have written.
template <class C>
__device__ __forceinline__ void consume_queries(typename C::Shared& s, const BackwardArguments& p) {
  using E = typename C::E;
  constexpr int kM = C::kM, kD = C::kD;
  const int in_group = threadIdx.x & 127, lane = in_group & 31, row = in_group / 32 * 16 + lane / 4;
  typename C::MmaQ mma_q;
  const auto shared = [](auto* x, auto layout) { return make_tensor(make_smem_ptr(x), layout); };
  const auto upper = mma_q.get_thread_slice(0), lower = mma_q.get_thread_slice(128);
  const Tensor ds = shared(s.ds, typename C::LayoutDs{});
  const Tensor kt = shared(s.k, typename C::LayoutKt{});
  const auto ds_upper = upper.make_fragment_A(upper.partition_A(ds));
  const auto ds_lower = lower.make_fragment_A(lower.partition_A(ds));
  const auto kt_upper = upper.make_fragment_B(upper.partition_B(kt));
  const auto kt_lower = lower.make_fragment_B(lower.partition_B(kt));
  Tensor dq = partition_fragment_C(mma_q, Shape<Int<kM>, Int<kD>>{});
  const float d_q_scale = p.scale * p.beta * C::Scores::kSlopesLack;
  const bool leader = lane == 0;
  const int members = p.heads / p.kv_heads;
  Ring<2> at_k(0), turn(0);
  Ring<C::kDsStages> at(0);
  bool asked = false;  // for the first half of what has gathered before this step
  // Where parts gather: every thread has numbers of its own there, and in shared memory.
  const auto slot_of = [&](const KeyBlock& b, int tile, int member) {
    const int64_t slot = b.chained ? (int64_t{b.tile0 + tile}) * p.heads + b.head * members + member
                                   : int64_t{blockIdx.x * members + member} * (p.whole / kM) + tile;
    return reinterpret_cast<float4*>((b.chained ? p.shared : p.own) + slot * C::kSlot) + in_group;
  };
  float4* const arrived = reinterpret_cast<float4*>(s.gathered) + in_group;
  const auto ask = [&](const float4* from) {
#pragma unroll
    for (int i = 0; i < size(dq) / 4; ++i) copy_async(arrived + i * 128, from + i * 128);
    commit_copies();
  };
  for (int n = 0;; ++n) {
    EmptyBarrier::wait(&s.full_ds[at.stage], at.phase);
    const Step step = s.step[n % C::kSteps];
    if (step.flags & Step::kEnd) break;
    const KeyBlock& b = s.block[at_k.stage];
    const Part part = step.part();
    const int head = b.head * members + step.member, tile = step.m0 / kM;
    const bool in_turn = b.chained && part != Part::kOnly && part != Part::kNone;
    float4* const slot = slot_of(b, tile, step.member);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float4* gathered = slot + half * (C::kSlot / 8);  // [i][128 threads] of a half
      // The last part is added to the others where they are.
      if (part == Part::kLast) {
        const auto take = [&](const auto& load) {
#pragma unroll
          for (int i = 0; i < size(dq) / 4; ++i) {
            const float4 y = load(i * 128);
            dq(4 * i) = y.x, dq(4 * i + 1) = y.y, dq(4 * i + 2) = y.z, dq(4 * i + 3) = y.w;
          }
        };
        if (half == 0 && !asked) {
          if (in_turn) EmptyBarrier::wait(&s.turn[turn.stage], turn.phase);
          take([&](int i) { return __ldcg(gathered + i); });
        } else {
          await_copies();
          take([&](int i) { return arrived[i]; });
        }
      }
      const auto start = part == Part::kLast ? GMMA::ScaleOut::One : GMMA::ScaleOut::Zero;
      if (half == 0)
        issue(mma_q, ds_upper(_, _, _, at.stage), kt_upper(_, _, _, at_k.stage), dq, start);
      else
        issue(mma_q, ds_lower(_, _, _, at.stage), kt_lower(_, _, _, at_k.stage), dq, start);
      // What gathered comes while this half is multiplied and stored: for the other half, or for the
      // next step. The products have taken what had arrived, so its place is free.
      if (half == 0) {
        if (part == Part::kLast) ask(gathered + C::kSlot / 8);
      } else {
        asked = false;
        if (step.flags & Step::kNextTakes) {
          Walk<C> next(tile, step.member);
          next.advance(b);
          Ring<2> its_turn = turn;
          if (in_turn) its_turn.advance();
          const auto has_come = [&](const Ring<2>& x) {
            return EmptyBarrier::test_wait(&s.turn[x.stage], x.phase, 1);
          };
          asked = !b.chained || __all_sync(0xffffffffu, has_come(its_turn));
          if (asked) ask(slot_of(b, next.tile, next.member));
        }
      }
      warpgroup_wait<0>();
      warpgroup_fence_operand(dq);
      if (half == 1 && leader) EmptyBarrier::arrive(&s.empty_ds[at.stage]);
      if (part == Part::kFirst || part == Part::kMiddle) {
        if (half == 0 && in_turn) EmptyBarrier::wait(&s.turn[turn.stage], turn.phase);
#pragma unroll
        for (int i = 0; i < size(dq) / 4; ++i) {
          const float4 y{dq(4 * i), dq(4 * i + 1), dq(4 * i + 2), dq(4 * i + 3)};
          if (part == Part::kFirst)
            __stcg(gathered + i * 128, y);
          else
            add_float4(gathered + i * 128, y);
        }
      } else if (part != Part::kNone) {
        const int column = C::kSplitColumns ? half * (kD / 2) : 0;
        const int line = row + (C::kSplitColumns ? 0 : 64 * half);
        const int64_t to = (b.q_start + step.m0) * p.q_token + head * p.q_head + column;
        if (p.seeds)
          store_float_rows<C::kQColumns / 8>(dq.data(), static_cast<float*>(p.d_q) + to, p.q_token,
                                             line, step.rows, p.head_dim - column, d_q_scale);
        else
          store_rows<C::kQColumns / 8>(dq.data(), static_cast<E*>(p.d_q) + to, p.q_token, line,
                                       step.rows, p.head_dim - column, d_q_scale);
      }
    }
    __syncwarp();
    if (in_turn) {
      if (leader) EmptyBarrier::arrive(&s.added[turn.stage]);
      turn.advance();
    }
    if (step.flags & Step::kLast) {
      if (leader) EmptyBarrier::arrive(&s.empty_k[at_k.stage]);
      at_k.advance();
    }
    at.advance();
  }
}

}  // namespace tautline::kernels::sm90
