// The warpgroups of backward.cuh that keep 64 keys each: scores, weights, dS, d_k, d_v.
//
// Shared memory is asked for before products are issued: what is asked for behind them waits until
// they have begun, as the queue is the same. Not so at a block's end, where nothing else is left to do:
// d_v leaves behind d_k's product, d_k's second half behind the next scores.
//
// A warp asks for the values of its own 16 keys as soon as d_v has left from their memory.
#pragma once

#include "tautline/kernels/attention_sm90/backward_config.cuh"
#include "tautline/kernels/attention_sm90/backward_memory.cuh"
#include "tautline/kernels/attention_sm90/backward_scores.cuh"

namespace tautline::kernels::sm90 {

template <class C>
__device__ __forceinline__ void consume_keys(typename C::Shared& s, const BackwardArguments& p,
                                             const BackwardMaps& maps, int group) {
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
  const float d_v_scale = p.beta * C::Scores::weights_lack(p.scale);
  const float d_k_scale = p.scale * p.beta * C::Scores::kSlopesLack;

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

  // A warp's own 16 keys: their values are asked for, d_k and d_v leave.
  const int own = 64 * group + 16 * warp;
  const auto ask_values = [&](const KeyBlock& b) {
    load_rows<16, kN, kD>(maps.v, &s.full_v[group], s.v + own * 64, p.value_dim,
                          int(b.k_start) + b.n0 + own, b.seen ? b.nk - b.n0 - own : 0, b.head);
  };
  const auto leave = [&](const CUtensorMap& map, int width, const E* from, const KeyBlock& b,
                         int column) {
    if (!leader) return;
    const int first = b.n0 + own, inside = min(b.nk - first, 16);
    if (inside > 0 && column < width) {
      hopper::tma_store(&map, from, column, 16 - inside, int(b.k_start) + first + inside, b.head);
      hopper::tma_store_commit();
    }
  };
  const auto left = [&] {  // nothing that leaves is read any more
    if (leader) hopper::tma_store_wait_read();
    __syncwarp();
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
  if (leader) ask_values(s.block[0]);
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
    if (first) {
      FullBarrier::wait(&s.full_v[group], v_phase);
      v_phase ^= 1;
    }
    warpgroup_wait<0>();  // scores; the last step's d_k
    warpgroup_fence_operand(x);
    warpgroup_fence_operand(dk);
    if (leader && n > 0) EmptyBarrier::arrive(&s.empty_q[before]);
    policy.template weights<kM>(x.data(), p_words, ds_words);
    if (step.flags & Step::kMasked)
      mask<C>(p, b.nq, b.nk, b.n0 + 64 * group + 16 * warp + lane / 4, step.m0, step.rows, p_words,
              ds_words);
    issue_scores(fv(_, _, _, 0), fdo(_, _, _, at.stage), 1, at.stage);
    issue(mma_kv, p16, fdot(_, _, _, at.stage), dv,
          first ? GMMA::ScaleOut::Zero : GMMA::ScaleOut::One);
    warpgroup_wait<0>();
    warpgroup_fence_operand(dv);
    warpgroup_fence_operand(x);
    if (leader) EmptyBarrier::arrive(&s.empty_do[at.stage]);
    policy.template gradients<kM>(ds_words, x.data(), ds_words);
    // The next step's queries, and maybe keys.
    Ring<C::kQStages> next = at_q;
    next.advance();
    if (last) at_k.advance();
    FullBarrier::wait(&s.full_q[next.stage], next.phase);
    const Step next_step = s.step[(n + 1) % C::kSteps];
    EmptyBarrier::wait(&s.empty_ds[at_ds.stage], at_ds.phase ^ 1);
    if (first) left();  // d_k of the block before, from there
    copy(to_shared, ds_from, ds_to(_, _, _, at_ds.stage));
    cutlass::arch::fence_view_async_shared();
    __syncwarp();
    if (leader) EmptyBarrier::arrive(&s.full_ds[at_ds.stage]);
    at.advance();
    at_ds.advance();
    if (C::Scores::kRows && !(next_step.flags & Step::kEnd))
      FullBarrier::wait(&s.full_terms[at.stage], at.phase);
    if (next_step.flags & Step::kFirst) FullBarrier::wait(&s.full_k[at_k.stage], at_k.phase);
    issue(mma_kv, ds16, fqt(_, _, _, at_q.stage), dk,
          first ? GMMA::ScaleOut::Zero : GMMA::ScaleOut::One);
    const KeyBlock& done = s.block[at_k.stage ^ 1];
    E* const out = s.ds + at_ds.stage * kM * kN + own * kM;
    if (last) {  // d_v leaves through its values' memory, then d_k through an empty stage of dS
      cutlass::arch::NamedBarrier::sync(128, 2 + group);  // all have multiplied
#pragma unroll
      for (int c = 0; c < kD; c += 64) {
        E* const rows = s.v + c * kN + own * 64;
        put_rows<E>(dv.data() + c / 2, hopper::shared_address(rows), d_v_scale);
        leave(maps.d_v, p.value_dim, rows, done, c);
      }
      warpgroup_wait<0>();
      warpgroup_fence_operand(dk);
      EmptyBarrier::wait(&s.empty_ds[at_ds.stage], at_ds.phase ^ 1);
      put_rows<E>(dk.data(), hopper::shared_address(out), d_k_scale);
      leave(maps.d_k, p.head_dim, out, done, 0);
      if (leader) cute::tma_store_wait<1>();  // d_v has left
      if (leader && (next_step.flags & Step::kFirst)) ask_values(s.block[at_k.stage]);
      // Of anything at the end.
      issue_scores(fk(_, _, _, at_k.stage), fq(_, _, _, next.stage), 0, at.stage);
      if constexpr (kD == 128) {
        left();
        put_rows<E>(dk.data() + 32, hopper::shared_address(out), d_k_scale);
        leave(maps.d_k, p.head_dim, out, done, 64);
      }
      if (leader) EmptyBarrier::arrive(&s.empty_k[at_k.stage ^ 1]);
    } else {
      issue_scores(fk(_, _, _, at_k.stage), fq(_, _, _, next.stage), 0, at.stage);
    }
    before = at_q.stage;
    at_q = next;
    step = next_step;
    ++n;
    if (step.flags & Step::kEnd) break;
  }
  warpgroup_wait<0>();
  warpgroup_fence_operand(x);
  left();
  no_more();
}

}  // namespace tautline::kernels::sm90
