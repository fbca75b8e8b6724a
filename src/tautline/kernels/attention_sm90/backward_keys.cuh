// The warpgroups of backward.cuh that keep 64 keys each: scores, weights, dS, d_k, d_v.
//
// Shared memory is asked for before products are issued: what is asked for behind them waits until
// they have begun, as the queue is the same.
#pragma once

#include "tautline/kernels/attention_sm90/backward_config.cuh"
#include "tautline/kernels/attention_sm90/backward_memory.cuh"
#include "tautline/kernels/attention_sm90/backward_scores.cuh"

namespace tautline::kernels::sm90 {

/// Weights (and slopes) of hidden pairs become 0. A thread has keys `row` and row + 8 of the block.
template <class C>
__device__ __forceinline__ void mask(const BackwardArguments& p, const KeyBlock& b,
                                     const Step& step, int row, int lane, uint32_t* weights,
                                     uint32_t* gates) {
  const int shift = b.nk - b.nq;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int key = b.n0 + row + 8 * r;
    const int low = max(-1, key - shift - p.right - step.m0) - 2 * (lane & 3);
    const int high =
        (key < b.nk ? min(step.rows, key - shift + p.left + 1 - step.m0) : -1) - 2 * (lane & 3);
#pragma unroll
    for (int j = 0; j < C::kM / 8; ++j) {
      const uint32_t keep = (8 * j >= low && 8 * j < high ? 0x0000ffffu : 0u) |
                            (8 * j + 1 >= low && 8 * j + 1 < high ? 0xffff0000u : 0u);
      weights[2 * j + r] &= keep;
      if constexpr (C::Scores::kGates) gates[2 * j + r] &= keep;
    }
  }
}

template <class C>
__device__ __forceinline__ void consume_keys(typename C::Shared& s, const BackwardArguments& p,
                                             int group) {
  using E = typename C::E;
  constexpr int kM = C::kM, kN = C::kN, kD = C::kD;
  const int in_group = threadIdx.x & 127, lane = threadIdx.x & 31, warp = in_group / 32;
  typename C::MmaS mma_s;
  typename C::MmaKv mma_kv;
  const auto my_s = mma_s.get_thread_slice(group * 128);
  const auto my_kv = mma_kv.get_thread_slice(group * 128);
  const auto shared = [](auto* x, auto layout) { return make_tensor(make_smem_ptr(x), layout); };
  const auto fk = my_s.make_fragment_A(my_s.partition_A(shared(s.k, typename C::LayoutK{})));
  const auto fv = my_s.make_fragment_A(my_s.partition_A(shared(s.v, typename C::LayoutV{})));
  const auto fq = my_s.make_fragment_B(my_s.partition_B(shared(s.q, typename C::LayoutQ{})));
  const auto fdo = my_s.make_fragment_B(my_s.partition_B(shared(s.d_o, typename C::LayoutDo{})));
  const auto fqt = my_kv.make_fragment_B(my_kv.partition_B(shared(s.q, typename C::LayoutQt{})));
  const auto fdot =
      my_kv.make_fragment_B(my_kv.partition_B(shared(s.d_o, typename C::LayoutDot{})));
  typename C::MmaTerms mma_terms;
  const auto my_terms = mma_terms.get_thread_slice(group * 128);
  const auto terms =
      my_terms.make_fragment_B(my_terms.partition_B(shared(s.terms, typename C::LayoutTerms{})));
  const auto scales =
      my_terms.make_fragment_A(my_terms.partition_A(shared(s.scales, typename C::LayoutScales{})));
  Tensor x = partition_fragment_C(mma_s, Shape<Int<kN>, Int<kM>>{});  // S^T, then dP^T
  Tensor dk = partition_fragment_C(mma_kv, Shape<Int<kN>, Int<kD>>{});
  Tensor dv = partition_fragment_C(mma_kv, Shape<Int<kN>, Int<kD>>{});
  Tensor p16 = make_tensor<E>(as_operand(x.layout()));
  Tensor slopes = make_tensor<E>(as_operand(x.layout()));
  // Where the slopes are P itself, dS takes P's place.
  Tensor ds16 = make_tensor(C::Scores::kGates ? slopes.data() : p16.data(), p16.layout());
  auto* p_words = reinterpret_cast<uint32_t*>(raw_pointer_cast(p16.data()));
  auto* ds_words = reinterpret_cast<uint32_t*>(raw_pointer_cast(ds16.data()));
  const auto to_shared = make_tiled_copy_C(Copy_Atom<SM90_U32x4_STSM_N, E>{}, mma_s);
  const auto my_copy = to_shared.get_thread_slice(128 * group + in_group);
  const Tensor ds_from = my_copy.retile_S(make_tensor(ds16.data(), x.layout()));
  Tensor ds_to = my_copy.partition_D(shared(s.ds, typename C::LayoutDst{}));
  const bool leader = lane == 0;
  const typename C::Scores policy(p);

  // x = a b^T, less what the terms of the tile say.
  const auto issue_scores = [&](const auto& a, const auto& b, int what, int stage) {
    if constexpr (C::Scores::kRows) {
      issue(mma_terms, scales(_, _, _, what), terms(_, _, _, stage), x, GMMA::ScaleOut::Zero,
            false);
      issue(mma_s, a, b, x, GMMA::ScaleOut::One);
    } else {
      issue(mma_s, a, b, x, GMMA::ScaleOut::Zero);
    }
  };

  // d_k and d_v of a block leave, through the warp's part of an empty stage of dS.
  const auto finish = [&](const KeyBlock& b, int stage) {
    constexpr int kPart = kM * kN / 8;
    const uint32_t scratch = static_cast<uint32_t>(
        __cvta_generic_to_shared(s.ds + stage * kM * kN + (4 * group + warp) * kPart));
    const int first = 64 * group + 16 * warp, rows = b.nk - b.n0 - first;
    const int64_t token = b.k_start + b.n0 + first;
#pragma unroll
    for (int c = 0; c < kD; c += 64) {
      store_tile<E>(dv.data() + c / 2, scratch,
                    static_cast<E*>(p.d_v) + token * p.v_token + b.head * p.v_head + c, p.v_token,
                    rows, p.value_dim - c, p.beta);
      store_tile<E>(dk.data() + c / 2, scratch,
                    static_cast<E*>(p.d_k) + token * p.k_token + b.head * p.k_head + c, p.k_token,
                    rows, p.head_dim - c, p.scale * p.beta);
    }
  };

  Ring<2> at_k(0);
  Ring<C::kQStages> at_q(0);
  Ring<C::kDoStages> at(0);
  Ring<C::kDsStages> at_ds(0);
  uint32_t v_phase = 0;
  int n = 0, before = 0;      // steps so far; the stage of the queries of the one before
  const auto no_more = [&] {  // d_q's warpgroup finds it in the next step
    __syncwarp();
    if (leader) EmptyBarrier::arrive(&s.full_ds[at_ds.stage]);
  };
  FullBarrier::wait(&s.full_q[0], 0);
  Step step = s.step[0];
  if (step.flags & Step::kEnd) return no_more();
  FullBarrier::wait(&s.full_k[0], 0);
  if (step.flags & Step::kTail)
    clear_tail<kN, kD>(s.k, s.block[0].nk - s.block[0].n0, in_group, group);
  if (step.rows < kM) clear_tail<kM, kD>(s.q, step.rows, in_group, group);
  clear(dk);
  clear(dv);
  if (C::Scores::kRows) FullBarrier::wait(&s.full_terms[0], 0);
  issue_scores(fk(_, _, _, 0), fq(_, _, _, 0), 0, 0);
  warpgroup_wait<0>();  // nothing in flight where the loop begins: ptxas would serialise all of it
  warpgroup_fence_operand(x);
  for (;;) {
    const KeyBlock& b = s.block[at_k.stage];
    const bool first = step.flags & Step::kFirst, last = step.flags & Step::kLast;
    FullBarrier::wait(&s.full_do[at.stage], at.phase);
    if (step.rows < kM) clear_tail<kM, kD>(s.d_o + at.stage * kM * kD, step.rows, in_group, group);
    if (first) {
      FullBarrier::wait(&s.full_v, v_phase);
      v_phase ^= 1;
      if (step.flags & Step::kTail) clear_tail<kN, kD>(s.v, b.nk - b.n0, in_group, group);
    }
    warpgroup_wait<0>();  // scores; the last step's d_k
    warpgroup_fence_operand(x);
    warpgroup_fence_operand(dk);
    if (leader && n > 0) EmptyBarrier::arrive(&s.empty_q[before]);
    policy.template weights<kM>(x.data(), p_words, ds_words);
    if (step.flags & Step::kMasked)
      mask<C>(p, b, step, 64 * group + 16 * warp + lane / 4, lane, p_words, ds_words);
    issue_scores(fv(_, _, _, 0), fdo(_, _, _, at.stage), 1, at.stage);
    issue(mma_kv, p16, fdot(_, _, _, at.stage), dv,
          first ? GMMA::ScaleOut::Zero : GMMA::ScaleOut::One);
    warpgroup_wait<0>();
    warpgroup_fence_operand(dv);
    warpgroup_fence_operand(x);
    if (leader) {
      EmptyBarrier::arrive(&s.empty_do[at.stage]);
      if (last) EmptyBarrier::arrive(&s.empty_v);
    }
    policy.template gradients<kM>(ds_words, x.data(), ds_words);
    if (step.rows == 0) {  // its deltas are anything
#pragma unroll
      for (int i = 0; i < kM / 4; ++i) ds_words[i] = 0;
    }
    // The next step's queries, and maybe keys.
    Ring<C::kQStages> next = at_q;
    next.advance();
    if (last) at_k.advance();
    FullBarrier::wait(&s.full_q[next.stage], next.phase);
    const Step next_step = s.step[(n + 1) % C::kSteps];
    EmptyBarrier::wait(&s.empty_ds[at_ds.stage], at_ds.phase ^ 1);
    copy(to_shared, ds_from, ds_to(_, _, _, at_ds.stage));
    cutlass::arch::fence_view_async_shared();
    __syncwarp();
    if (leader) EmptyBarrier::arrive(&s.full_ds[at_ds.stage]);
    at.advance();
    at_ds.advance();
    if (C::Scores::kRows && !(next_step.flags & Step::kEnd))
      FullBarrier::wait(&s.full_terms[at.stage], at.phase);
    if (next_step.flags & Step::kFirst) {
      FullBarrier::wait(&s.full_k[at_k.stage], at_k.phase);
      const KeyBlock& next_b = s.block[at_k.stage];
      if (next_step.flags & Step::kTail)
        clear_tail<kN, kD>(s.k + at_k.stage * kN * kD, next_b.nk - next_b.n0, in_group, group);
    }
    if (next_step.rows < kM)
      clear_tail<kM, kD>(s.q + next.stage * kM * kD, next_step.rows, in_group, group);
    issue(mma_kv, ds16, fqt(_, _, _, at_q.stage), dk,
          first ? GMMA::ScaleOut::Zero : GMMA::ScaleOut::One);
    if (last) {  // before the next scores need their registers
      warpgroup_wait<0>();
      warpgroup_fence_operand(dk);
      EmptyBarrier::wait(&s.empty_ds[at_ds.stage], at_ds.phase ^ 1);
      finish(s.block[at_k.stage ^ 1], at_ds.stage);
      if (leader) EmptyBarrier::arrive(&s.empty_k[at_k.stage ^ 1]);
    }
    // Of anything at the end.
    issue_scores(fk(_, _, _, at_k.stage), fq(_, _, _, next.stage), 0, at.stage);
    before = at_q.stage;
    at_q = next;
    step = next_step;
    ++n;
    if (step.flags & Step::kEnd) break;
  }
  warpgroup_wait<0>();
  warpgroup_fence_operand(x);
  no_more();
}

}  // namespace tautline::kernels::sm90
