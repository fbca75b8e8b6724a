// The warpgroup of backward_few.cuh that multiplies.
#pragma once

#include "tautline/kernels/attention_sm90/backward_few_config.cuh"
#include "tautline/kernels/attention_sm90/backward_memory.cuh"
#include "tautline/kernels/attention_sm90/backward_scores.cuh"

namespace tautline::kernels::sm90 {

template <class C>
__device__ __forceinline__ void consume_few(typename C::Shared& s, const BackwardArguments& p,
                                            const BackwardMaps& maps) {
  using E = typename C::E;
  constexpr int kM = C::kM, kN = C::kN, kD = C::kD;
  const int in_group = threadIdx.x & 127, lane = threadIdx.x & 31, own = in_group / 32 * 16;
  const bool leader = lane == 0;
  typename C::MmaS mma_s;
  typename C::MmaKv mma_kv;
  typename C::MmaQ mma_q;
  typename C::MmaTerms mma_terms;
  const auto my_s = mma_s.get_thread_slice(in_group);
  const auto my_kv = mma_kv.get_thread_slice(in_group);
  const auto my_q = mma_q.get_thread_slice(in_group);
  const auto my_terms = mma_terms.get_thread_slice(in_group);
  const auto shared = [](auto* x, auto layout) { return make_tensor(make_smem_ptr(x), layout); };
  const auto fk = my_s.make_fragment_A(my_s.partition_A(shared(s.k, typename C::LayoutK{})));
  const auto fv = my_s.make_fragment_A(my_s.partition_A(shared(s.v, typename C::LayoutK{})));
  const auto fq = my_s.make_fragment_B(my_s.partition_B(shared(s.q, typename C::LayoutQ{})));
  const auto fdo = my_s.make_fragment_B(my_s.partition_B(shared(s.d_o, typename C::LayoutQ{})));
  const auto fqt = my_kv.make_fragment_B(my_kv.partition_B(shared(s.q, typename C::LayoutQt{})));
  const auto fdot = my_kv.make_fragment_B(my_kv.partition_B(shared(s.d_o, typename C::LayoutQt{})));
  const auto fds = my_q.make_fragment_A(my_q.partition_A(shared(s.ds, typename C::LayoutDs{})));
  const auto fkt = my_q.make_fragment_B(my_q.partition_B(shared(s.k, typename C::LayoutKt{})));
  const auto terms =
      my_terms.make_fragment_B(my_terms.partition_B(shared(s.terms, typename C::LayoutTerms{})));
  const auto scales =
      my_terms.make_fragment_A(my_terms.partition_A(shared(s.scales, typename C::LayoutScales{})));
  Tensor x = partition_fragment_C(mma_s, Shape<Int<kN>, Int<kM>>{});     // S^T, then dP^T
  Tensor dkv = partition_fragment_C(mma_kv, Shape<Int<kN>, Int<kD>>{});  // d_v, then d_k
  Tensor dq = partition_fragment_C(mma_q, Shape<Int<kM>, Int<kD>>{});
  Tensor p16 = make_tensor<E>(as_operand(x.layout()));
  Tensor slopes = make_tensor<E>(as_operand(x.layout()));
  // Where the slopes are P itself, dS takes P's place.
  Tensor ds16 = make_tensor(C::Scores::kGates ? slopes.data() : p16.data(), p16.layout());
  auto* p_words = reinterpret_cast<uint32_t*>(raw_pointer_cast(p16.data()));
  auto* ds_words = reinterpret_cast<uint32_t*>(raw_pointer_cast(ds16.data()));
  const auto to_shared = make_tiled_copy_C(Copy_Atom<SM90_U32x4_STSM_N, E>{}, mma_s);
  const auto my_copy = to_shared.get_thread_slice(in_group);
  const Tensor ds_from = my_copy.retile_S(make_tensor(ds16.data(), x.layout()));
  Tensor ds_to = my_copy.partition_D(shared(s.ds, typename C::LayoutDst{}));
  const typename C::Scores policy(p);
  const float d_v_scale = p.beta * C::Scores::weights_lack(p.scale);
  const float d_k_scale = p.scale * p.beta * C::Scores::kSlopesLack;

  // x = a b^T, less what the terms of the tile say.
  const auto issue_scores = [&](const auto& a, const auto& b, int what) {
    if constexpr (C::Scores::kRows) {
      issue(mma_terms, scales(_, _, _, what), terms(_, _, _, 0), x, GMMA::ScaleOut::Zero, false);
      issue(mma_s, a, b, x, GMMA::ScaleOut::One);
    } else {
      issue(mma_s, a, b, x, GMMA::ScaleOut::Zero);
    }
  };
  const auto sync = [] { cutlass::arch::NamedBarrier::sync(128, 1); };
  // Of a warp's own 16 keys, through the memory of what was loaded.
  const auto leave = [&](const CUtensorMap& map, int width, E* stage, int k_start, int left,
                         int head, float scale) {
    const int inside = min(left - own, 16);
#pragma unroll
    for (int c = 0; c < kD; c += 64) {
      E* const rows = stage + c * kN + own * 64;
      put_rows<E>(dkv.data() + c / 2, hopper::shared_address(rows), scale);
      if (leader && inside > 0 && c < width)
        hopper::tma_store(&map, rows, c, 16 - inside, k_start + own + inside, head);
    }
    if (leader) hopper::tma_store_commit();
  };

  Ring<C::kStages> at(0);
  uint32_t q_phase = 0;
  int unread = -1;  // stage of the keys whose d_k is leaving
  const auto free_keys = [&] {
    if (!leader || unread < 0) return;
    hopper::tma_store_wait_read();
    EmptyBarrier::arrive(&s.empty_k[unread]);
  };
  const auto multiply_item = [&](int head) {
    FullBarrier::wait(&s.full_q, q_phase);
    q_phase ^= 1;
    const auto item = s.item;
    for (int n0 = 0; n0 < item.nk; n0 += kN, at.advance()) {
      E* const k_stage = s.k + at.stage * kN * kD;
      E* const v_stage = s.v + at.stage * kN * kD;
      const auto leave_block = [&](const CUtensorMap& map, int width, E* stage, float scale) {
        leave(map, width, stage, item.k_start + n0, item.nk - n0, head, scale);
      };
      FullBarrier::wait(&s.full_k[at.stage], at.phase);
      if (!is_seen<C>(p, item.nq, item.nk, n0)) {
        free_keys();
        FullBarrier::wait(&s.full_v[at.stage], at.phase);
        clear(dkv);
        leave_block(maps.d_v, p.value_dim, v_stage, 0);
        leave_block(maps.d_k, p.head_dim, k_stage, 0);
        if (leader) {
          cute::tma_store_wait<1>();
          EmptyBarrier::arrive(&s.empty_v[at.stage]);
        }
        unread = at.stage;
        continue;
      }
      issue_scores(fk(_, _, _, at.stage), fq(_, _, _, 0), 0);
      free_keys();
      warpgroup_wait<0>();
      warpgroup_fence_operand(x);
      policy.template weights<kM>(x.data(), p_words, ds_words);
      const int shift = item.nk - item.nq;
      if (n0 + kN > item.nk || item.nq < kM || n0 + kN - 1 > shift + p.right ||
          n0 < kM - 1 + shift - p.left)
        mask<C>(p, item.nq, item.nk, n0 + own + lane / 4, 0, item.nq, p_words, ds_words);
      FullBarrier::wait(&s.full_v[at.stage], at.phase);
      issue_scores(fv(_, _, _, at.stage), fdo(_, _, _, 0), 1);
      issue(mma_kv, p16, fdot(_, _, _, 0), dkv);
      warpgroup_wait<0>();
      warpgroup_fence_operand(x);
      warpgroup_fence_operand(dkv);
      policy.template gradients<kM>(ds_words, x.data(), ds_words);
      copy(to_shared, ds_from, ds_to(_, _, _, 0));
      cutlass::arch::fence_view_async_shared();
      sync();  // dS is there, and nobody reads values any more
      issue(mma_q, fds(_, _, _, 0), fkt(_, _, _, at.stage), dq, GMMA::ScaleOut::One);
      leave_block(maps.d_v, p.value_dim, v_stage, d_v_scale);
      issue(mma_kv, ds16, fqt(_, _, _, 0), dkv);
      if (leader) {
        hopper::tma_store_wait_read();
        EmptyBarrier::arrive(&s.empty_v[at.stage]);
      }
      warpgroup_wait<0>();
      warpgroup_fence_operand(dq);
      warpgroup_fence_operand(dkv);
      sync();  // nobody reads keys or dS any more
      leave_block(maps.d_k, p.head_dim, k_stage, d_k_scale);
      unread = at.stage;
    }
    __syncwarp();
    if (leader) EmptyBarrier::arrive(&s.empty_q);
    return item;
  };
  const int pairs = *p.count, row = own + lane / 4;
  for_each_head(p, [&](int head, int rank, int ranks) {
    int together = 0;    // sequences in dq
    bool added = false;  // to the part in memory
    const auto add_part = [&] {
      float* part = static_cast<float*>(p.d_q) + rank * p.seeds * p.q_token + head * p.q_head;
      store_float_rows<kD / 8>(dq.data(), part, p.q_token, row, p.seeds, p.head_dim, d_k_scale,
                               added);
      clear(dq);
      together = 0;
      added = true;
    };
    clear(dq);
    for_each_pair(pairs, rank, ranks, [&](int) {
      const auto item = multiply_item(head);
      if (p.seeds) {
        if (++together == C::kMostTogether) add_part();
        return;
      }
      store_rows<kD / 8>(dq.data(),
                         static_cast<E*>(p.d_q) + item.q_start * p.q_token + head * p.q_head,
                         p.q_token, row, item.nq, p.head_dim, d_k_scale);
      clear(dq);
    });
    if (p.seeds && (together > 0 || !added)) add_part();
  });
  if (leader) hopper::tma_store_wait_read();
}

}  // namespace tautline::kernels::sm90
