// The kernel of attention_backward_sm90.h. One producer warpgroup (a thread that loads tiles with
// TMA, a thread that moves d_q to and from where it gathers), two consumer warpgroups of 64 keys
// each.
//
// A step is one tile of M queries against 128 keys; scores are transposed, keys by queries, so that
// P^T and dS^T are register operands of the products for d_v and d_k:
//   S^T = K Q^T    dP^T = V dO^T    dV += P^T dO    dQ = dS K (dS through shared memory)
//   dK += dS^T Q
// The next step's S^T is issued behind this step's dQ and dK, over the ends of key blocks and items
// too, so the tensor cores have work while the consumers exponentiate and store.
//
// M queries of a tile, D head dimension, E element type.
#pragma once

#include <cstdint>
#include <cutlass/arch/reg_reconfig.h>

#include "tautline/kernels/attention_backward_sm90_config.cuh"
#include "tautline/kernels/attention_backward_sm90_load.cuh"
#include "tautline/kernels/attention_backward_sm90_memory.cuh"
#include "tautline/kernels/attention_backward_sm90_scores.cuh"
#include "tautline/kernels/attention_backward_sm90_workspace.h"
#include "tautline/kernels/launch.cuh"

namespace tautline::kernels::sm90 {

template <class C>
__device__ __forceinline__ void consume(typename C::Shared& s, const BackwardArguments& p) {
  using E = typename C::E;
  constexpr int kM = C::kM, kN = C::kN, kD = C::kD;
  const int thread = threadIdx.x - 128, group = cutlass::canonical_warp_group_idx() - 1;
  const int in_group = thread & 127, lane = thread & 31, row = in_group / 32 * 16 + lane / 4;
  typename C::MmaS mma_s;
  typename C::MmaKv mma_kv;
  typename C::MmaQ mma_q;
  const auto my_s = mma_s.get_thread_slice(group * 128);
  const auto my_kv = mma_kv.get_thread_slice(group * 128);
  const auto my_q = mma_q.get_thread_slice(group * 128);
  const auto shared = [](auto* x, auto layout) { return make_tensor(make_smem_ptr(x), layout); };
  const auto fk = my_s.make_fragment_A(my_s.partition_A(shared(s.k, typename C::LayoutK{})));
  const auto fv = my_s.make_fragment_A(my_s.partition_A(shared(s.v, typename C::LayoutV{})));
  const auto fq = my_s.make_fragment_B(my_s.partition_B(shared(s.q, typename C::LayoutQ{})));
  const auto fdo = my_s.make_fragment_B(my_s.partition_B(shared(s.d_o, typename C::LayoutDo{})));
  const auto fqt = my_kv.make_fragment_B(my_kv.partition_B(shared(s.q, typename C::LayoutQt{})));
  const auto fdot =
      my_kv.make_fragment_B(my_kv.partition_B(shared(s.d_o, typename C::LayoutDot{})));
  const auto fds = my_q.make_fragment_A(my_q.partition_A(shared(s.ds, typename C::LayoutDs{})));
  const auto fkt = my_q.make_fragment_B(my_q.partition_B(shared(s.k, typename C::LayoutKt{})));
  Tensor scores = partition_fragment_C(mma_s, Shape<Int<kN>, Int<kM>>{});
  Tensor dp = partition_fragment_C(mma_s, Shape<Int<kN>, Int<kM>>{});
  Tensor dk = partition_fragment_C(mma_kv, Shape<Int<kN>, Int<kD>>{});
  Tensor dv = partition_fragment_C(mma_kv, Shape<Int<kN>, Int<kD>>{});
  Tensor dq = partition_fragment_C(mma_q, Shape<Int<kM>, Int<kD>>{});
  Tensor p16 = make_tensor<E>(as_operand(scores.layout()));
  Tensor ds16 = make_tensor<E>(as_operand(scores.layout()));
  auto* p_words = reinterpret_cast<uint32_t*>(raw_pointer_cast(p16.data()));
  auto* ds_words = reinterpret_cast<uint32_t*>(raw_pointer_cast(ds16.data()));
  uint32_t* gates = ds_words;  // pairs of f', where it is not P itself, until they are dS
  const auto to_shared = make_tiled_copy_C(Copy_Atom<SM90_U32x4_STSM_N, E>{}, mma_s);
  const auto my_copy = to_shared.get_thread_slice(thread);
  const Tensor ds_from = my_copy.retile_S(make_tensor(ds16.data(), scores.layout()));
  Tensor ds_to = my_copy.partition_D(shared(s.ds, typename C::LayoutDst{}));
  const bool leader = lane == 0;
  const typename C::Scores policy(p);

  Ring<2> at_k(0);
  Ring<C::kVStages> at_v(0);
  Ring<C::kQStages> at_q(0);
  Ring<C::kDoStages> at_do(0);
  Ring<1> ds_free(1), sent(1), in(0);
  float4* staged = s.dq + group * (C::kSlot / 8) + in_group;  // [i][128 threads] of a warpgroup
  // A step's queries have come, and at its first step a block's keys.
  const auto await_queries = [&](const KeyBlock& b, E* keys, bool first, int rows,
                                 const Ring<C::kQStages>& at) {
    FullBarrier::wait(&s.full_q[at.stage], at.phase);
    if (first && b.n0 + kN > b.nk) clear_tail<kN, kD>(keys, b.nk - b.n0, in_group, group);
    if (rows < kM) clear_tail<kM, kD>(s.q + at.stage * kM * kD, rows, in_group, group);
  };
  // d_k and d_v of a block leave, under the first products of the next.
  const auto finish = [&](int k_stage) {
    const KeyBlock& b = s.block[k_stage];
    const int keys = b.nk - b.n0, head = b.head;
    const int64_t token = b.k_start + b.n0;
    store_rows<kD / 8>(dv.data(), static_cast<E*>(p.d_v) + token * p.v_token + head * p.v_head,
                       p.v_token, 64 * group + row, keys, p.value_dim, p.beta);
    store_rows<kD / 8>(dk.data(), static_cast<E*>(p.d_k) + token * p.k_token + head * p.k_head,
                       p.k_token, 64 * group + row, keys, p.head_dim, p.scale * p.beta);
    __syncwarp();
    if (leader) EmptyBarrier::arrive(&s.empty_k[k_stage]);
  };

  FullBarrier::wait(&s.full_k[0], 0);
  if (s.block[0].head < 0) return;
  clear(dk);
  clear(dv);
  Walk<C> w(s.block[0]);
  await_queries(s.block[0], s.k, true, w.rows(s.block[0]), at_q);
  issue(mma_s, fk(_, _, _, 0), fq(_, _, _, 0), scores);
  warpgroup_wait<0>();  // nothing in flight where the loop begins: ptxas would serialise all of it
  warpgroup_fence_operand(scores);
  const int members = p.heads / p.kv_heads;
  int last_q = -1;  // stage of the queries of the step before
  for (;;) {
    const KeyBlock& b = s.block[at_k.stage];
    const int steps = b.steps;
    FullBarrier::wait(&s.full_v[at_v.stage], at_v.phase);
    int t = 0;
    do {
      const int m0 = w.tile * kM, rows = w.rows(b);
      const bool last = t + 1 == steps;
      FullBarrier::wait(&s.full_do[at_do.stage], at_do.phase);
      if (rows < kM) clear_tail<kM, kD>(s.d_o + at_do.stage * kM * kD, rows, in_group, group);
      if (t == 0 && b.n0 + kN > b.nk)
        clear_tail<kN, kD>(s.v + at_v.stage * kN * kD, b.nk - b.n0, in_group, group);
      policy.template start<kM>(dp.data(), s.delta[at_do.stage], lane);
      float2 lse[kM / 8];
      policy.template load<kM>(lse, s.lse[at_q.stage], lane);
      warpgroup_wait<0>();  // scores; the last step's d_k
      warpgroup_fence_operand(scores);
      warpgroup_fence_operand(dk);
      if (leader && last_q >= 0) EmptyBarrier::arrive(&s.empty_q[last_q]);
      issue(mma_s, fv(_, _, _, at_v.stage), fdo(_, _, _, at_do.stage), dp,
            C::Scores::kRows ? GMMA::ScaleOut::One : GMMA::ScaleOut::Zero);
      if (t == 0 && last_q >= 0) finish(at_k.stage ^ 1);
      last_q = at_q.stage;

      policy.template weights<kM>(scores.data(), p_words, gates, lse);
      const int shift = b.nk - b.nq;
      if (rows < kM || b.n0 + kN > b.nk || b.n0 + kN - 1 > m0 + shift + p.right ||
          b.n0 < m0 + kM - 1 + shift - p.left) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int key = b.n0 + 64 * group + row + 8 * r;
          const int low = max(-1, key - shift - p.right - m0) - 2 * (lane & 3);
          const int high =
              (key < b.nk ? min(rows, key - shift + p.left + 1 - m0) : -1) - 2 * (lane & 3);
#pragma unroll
          for (int j = 0; j < kM / 8; ++j) {
            const uint32_t keep = (8 * j >= low && 8 * j < high ? 0x0000ffffu : 0u) |
                                  (8 * j + 1 >= low && 8 * j + 1 < high ? 0xffff0000u : 0u);
            p_words[2 * j + r] &= keep;
            if constexpr (C::Scores::kGates) gates[2 * j + r] &= keep;
          }
        }
      }
      issue(mma_kv, p16, fdot(_, _, _, at_do.stage), dv,
            t == 0 ? GMMA::ScaleOut::Zero : GMMA::ScaleOut::One);
      warpgroup_wait<1>();
      warpgroup_fence_operand(dp);
      policy.template gradients<kM>(C::Scores::kGates ? gates : p_words, dp.data(), ds_words);
      if (!b.seen) {  // its deltas are anything
#pragma unroll
        for (int i = 0; i < kM / 4; ++i) ds_words[i] = 0;
      }
      if (leader && last) EmptyBarrier::arrive(&s.empty_v[at_v.stage]);
      EmptyBarrier::wait(&s.ds_free, ds_free.phase);  // both warpgroups' d_q of the step before
      ds_free.advance();
      copy(to_shared, ds_from, ds_to);
      cutlass::arch::fence_view_async_shared();
      cutlass::arch::NamedBarrier::sync(256, 1);

      Ring<C::kQStages> next_q = at_q;
      next_q.advance();
      Ring<2> next_k = at_k;
      if (last) {
        next_k.advance();
        FullBarrier::wait(&s.full_k[next_k.stage], next_k.phase);
      }
      Walk<C> next = w;
      const KeyBlock& next_b = s.block[next_k.stage];
      if (next_b.head >= 0) {
        last ? void(next = Walk<C>(next_b)) : next.advance(b);
        await_queries(next_b, s.k + next_k.stage * kN * kD, last, next.rows(next_b), next_q);
      }
      // In one piece, without branches: ptxas loses count of the products in flight otherwise. After
      // the last block the scores are of whatever lies there.
      issue(mma_q, fds, fkt(_, _, _, at_k.stage), dq);
      issue(mma_kv, ds16, fqt(_, _, _, at_q.stage), dk,
            t == 0 ? GMMA::ScaleOut::Zero : GMMA::ScaleOut::One);
      warpgroup_wait<2>();  // d_v: gives back the registers of P
      warpgroup_fence_operand(dv);
      issue(mma_s, fk(_, _, _, next_k.stage), fq(_, _, _, next_q.stage), scores);
      warpgroup_wait<2>();
      warpgroup_fence_operand(dq);
      if (leader) {
        EmptyBarrier::arrive(&s.empty_do[at_do.stage]);
        EmptyBarrier::arrive(&s.ds_free);
      }

      const Part part = part_of<C>(p, b, m0, rows);
      if (part == Part::kFirst || part == Part::kMiddle) {
        EmptyBarrier::wait(&s.dq_sent, sent.phase);
        sent.advance();
#pragma unroll
        for (int i = 0; i < size(dq) / 4; ++i)
          staged[i * 128] = float4{dq(4 * i), dq(4 * i + 1), dq(4 * i + 2), dq(4 * i + 3)};
        cutlass::arch::fence_view_async_shared();
        __syncwarp();
        if (leader) EmptyBarrier::arrive(&s.dq_out);
      } else if (part != Part::kNone) {
        if (part == Part::kLast) {
          FullBarrier::wait(&s.dq_in, in.phase);
          in.advance();
#pragma unroll
          for (int i = 0; i < size(dq) / 4; ++i) {
            const float4 x = staged[i * 128];
            dq(4 * i) += x.x, dq(4 * i + 1) += x.y, dq(4 * i + 2) += x.z, dq(4 * i + 3) += x.w;
          }
          __syncwarp();
          if (leader) EmptyBarrier::arrive(&s.dq_read);
        }
        const int column = C::kSplitColumns ? group * (kD / 2) : 0;
        const int line = row + (C::kSplitColumns ? 0 : 64 * group);
        const int64_t at =
            (b.q_start + m0) * p.q_token + (b.head * members + w.member) * p.q_head + column;
        if (p.seeds)
          store_float_rows<C::kQColumns / 8>(dq.data(), static_cast<float*>(p.d_q) + at, p.q_token,
                                             line, rows, p.head_dim - column, p.scale * p.beta);
        else
          store_rows<C::kQColumns / 8>(dq.data(), static_cast<E*>(p.d_q) + at, p.q_token, line,
                                       rows, p.head_dim - column, p.scale * p.beta);
      }
      w = next;
      at_q = next_q;
      at_do.advance();
    } while (++t < steps);
    at_k.advance();
    at_v.advance();
    if (s.block[at_k.stage].head < 0) break;
  }
  warpgroup_wait<0>();
  warpgroup_fence_operand(dk);
  warpgroup_fence_operand(scores);
  finish(at_k.stage ^ 1);
}

template <class C, class TmaQ, class TmaK>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_backward(const __grid_constant__ BackwardArguments p,
                       const __grid_constant__ TmaQ tma_q, const __grid_constant__ TmaQ tma_do,
                       const __grid_constant__ TmaK tma_k, const __grid_constant__ TmaK tma_v) {
  extern __shared__ char raw[];
  auto& s = *reinterpret_cast<typename C::Shared*>(raw);
  if (threadIdx.x == 0) {
    const auto init = [](uint64_t* full, uint64_t* empty, int stages, int readers) {
      for (int i = 0; i < stages; ++i)
        FullBarrier::init(full + i, 1), EmptyBarrier::init(empty + i, readers);
    };
    init(s.full_k, s.empty_k, 2, 8 + 1);  // the consumers' warps, and the one that gathers d_q
    init(s.full_v, s.empty_v, C::kVStages, 8);
    init(s.full_q, s.empty_q, C::kQStages, 8);
    init(s.full_do, s.empty_do, C::kDoStages, 8);
    init(&s.dq_in, &s.dq_read, 1, 8);
    init(&s.dq_sent, &s.dq_out, 1, 8);
    EmptyBarrier::init(&s.ds_free, 8);
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  if (cutlass::canonical_warp_group_idx() == 0) {
    cutlass::arch::warpgroup_reg_dealloc<24>();
    const int warp = cutlass::canonical_warp_idx_sync();
    if (warp < 2 && cute::elect_one_sync()) {
      if (warp == 0) produce<C>(s, p, tma_q, tma_do, tma_k, tma_v);
      if (warp == 1) gather<C>(s, p);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<240>();
    consume<C>(s, p);
  }
}

template <class C>
void launch_backward(const AttentionSm90Backward& p) {
  using E = typename C::E;
  const cudaStream_t stream = stream_of(p.stream);
  const BackwardWorkspace w = backward_workspace(p);
  char* workspace = static_cast<char*>(p.workspace);
  const auto bound = [](int64_t x) {
    return static_cast<int32_t>(x < 0 || x > (1 << 30) ? 1 << 30 : x);
  };
  BackwardArguments a{};
  a.q_offsets = p.q_offsets;
  a.k_offsets = p.k_offsets;
  a.tiles = p.tiles;
  a.count = p.count;
  a.seeds = p.q_offsets ? 0 : static_cast<int32_t>(p.max_q);
  a.head_dim = p.head_dim;
  a.value_dim = p.value_dim;
  a.q_tokens = p.q_offsets ? p.rows : p.max_q;
  a.q_rows = p.rows;
  a.k_tokens = p.k_tokens;
  a.heads = p.heads;
  a.kv_heads = p.kv_heads;
  a.whole = p.whole;
  a.left = bound(p.window.left);
  a.right = bound(p.window.right);
  a.scale = p.scale;
  a.beta = p.beta;
  a.activation = p.activation;
  a.d_q = p.d_q.data, a.q_token = p.d_q.token_stride, a.q_head = p.d_q.head_stride;
  a.d_k = p.d_k.data, a.k_token = p.d_k.token_stride, a.k_head = p.d_k.head_stride;
  a.d_v = p.d_v.data, a.v_token = p.d_v.token_stride, a.v_head = p.d_v.head_stride;
  a.next = reinterpret_cast<int32_t*>(workspace + w.next);
  a.turns = reinterpret_cast<int32_t*>(workspace + w.turns);
  a.rows = reinterpret_cast<float*>(workspace + w.rows);
  a.own = reinterpret_cast<float*>(workspace + w.own);
  a.shared = reinterpret_cast<float*>(workspace + w.shared);
  check_cuda(cudaMemsetAsync(workspace, 0, w.turns_end, stream), "cudaMemsetAsync");
  backward_rows(p, reinterpret_cast<float*>(workspace + w.rows));
  if (p.k_tokens == 0) return;

  // Maps end with the tensors: columns beyond their widths are zeros.
  const auto view = [](const HeadsView& x, int64_t tokens, int width, int heads) {
    return make_tensor(make_gmem_ptr(static_cast<const E*>(x.data)),
                       make_shape(int(tokens), width, heads),
                       make_stride(x.token_stride, _1{}, x.head_stride));
  };
  const auto query_map = [&](const HeadsView& x, int64_t tokens, int width) {
    return make_tma_copy(SM90_TMA_LOAD{}, view(x, tokens > 0 ? tokens : 1, width, p.heads),
                         take<0, 2>(typename C::LayoutQ{}), Shape<Int<C::kM>, Int<C::kD>>{}, _1{});
  };
  const auto key_map = [&](const HeadsView& x, int width) {
    return make_tma_copy(SM90_TMA_LOAD{}, view(x, p.k_tokens, width, p.kv_heads),
                         take<0, 2>(typename C::LayoutK{}), Shape<Int<C::kN>, Int<C::kD>>{}, _1{});
  };
  const auto tma_q = query_map(p.q, a.q_tokens, p.head_dim);
  const auto tma_do = query_map(p.d_o, a.q_rows, p.value_dim);
  const auto tma_k = key_map(p.k, p.head_dim), tma_v = key_map(p.v, p.value_dim);
  using TmaQ = std::remove_const_t<decltype(tma_q)>;
  using TmaK = std::remove_const_t<decltype(tma_k)>;
  auto* kernel = attention_backward<C, TmaQ, TmaK>;
  constexpr int kBytes = sizeof(typename C::Shared);
  static_assert(kBytes <= 232448);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "cudaFuncSetAttribute");
  kernel<<<p.ctas, C::kThreads, kBytes, stream>>>(a, tma_q, tma_do, tma_k, tma_v);
  check_launch("attention backward");
}

}  // namespace tautline::kernels::sm90
