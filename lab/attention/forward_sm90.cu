// Softmax attention forward for Hopper, the first rung: one producer thread loads tiles with TMA, two
// consumer warpgroups multiply them with wgmma; the product of the next keys runs while this one's
// scores become probabilities. Persistent CTAs walk the tiles that the host deals.
//
// Tiles may read past a sequence's end into the next one: those scores are masked, so their values
// meet probabilities of exactly 0. (A NaN or infinity in another sample's v would still show.)
#include <cstdint>
#include <cute/tensor.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cutlass/numeric_types.h>

#include "forward_sm90.h"

using namespace cute;

namespace tautline::kernels {

template <class E, int kD, int kN_, int kConsumers_>
struct ForwardConfig {
  using Element = E;
  static constexpr int kDim = kD, kN = kN_, kConsumers = kConsumers_, kM = 64 * kConsumers;
  static constexpr int kStages = 2, kThreads = 128 * (kConsumers + 1);
  using Atom = GMMA::Layout_K_SW128_Atom<E>;
  using LayoutQ = decltype(tile_to_shape(Atom{}, Shape<Int<kM>, Int<kDim>>{}));
  using LayoutK = decltype(tile_to_shape(Atom{}, Shape<Int<kN>, Int<kDim>, Int<kStages>>{}));
  using LayoutVt =
      decltype(composition(LayoutK{}, make_layout(Shape<Int<kDim>, Int<kN>, Int<kStages>>{},
                                                  make_stride(Int<kN>{}, _1{}, Int<kN * kDim>{}))));
  using Warpgroups = Layout<Shape<Int<kConsumers>, _1, _1>>;
  using MmaQK = decltype(make_tiled_mma(
      GMMA::ss_op_selector<E, E, float, Shape<Int<kM>, Int<kN>, Int<kDim>>>(), Warpgroups{}));
  using MmaPV =
      decltype(make_tiled_mma(GMMA::rs_op_selector<E, E, float, Shape<Int<kM>, Int<kDim>, Int<kN>>,
                                                   GMMA::Major::K, GMMA::Major::MN>(),
                              Warpgroups{}));
  using Bytes = Int<sizeof(E)>;
  static constexpr uint32_t kQBytes = kM * kDim * sizeof(E), kKBytes = kN * kDim * sizeof(E);

  struct alignas(1024) Shared {
    alignas(1024) E q[kM * kDim];
    alignas(1024) E k[kStages * kN * kDim];
    alignas(1024) E v[kStages * kN * kDim];
    alignas(1024) E o[kM * kDim];
    uint64_t full_q, empty_q, full_k[kStages], empty_k[kStages], full_v[kStages], empty_v[kStages];
  };
};

using FullBarrier = cutlass::arch::ClusterTransactionBarrier;
using EmptyBarrier = cutlass::arch::ClusterBarrier;

struct KeyBounds {
  int first, last;
};

__device__ __forceinline__ KeyBounds visible(int64_t left, int64_t right, int i, int nq, int nk) {
  const int64_t p = int64_t{i} + nk - nq;
  const int64_t first = left < 0 ? 0 : p - left, last = right < 0 ? nk : p + right + 1;
  return {static_cast<int>(first < 0    ? 0
                           : first > nk ? nk
                                        : first),
          static_cast<int>(last < 0    ? 0
                           : last > nk ? nk
                                       : last)};
}

/// Key blocks [first, last) that the rows [m0, m0 + kM) see.
struct Blocks {
  int first, last, m0, nq, nk;
  int64_t q_start, k_start;
};

template <class C>
__device__ __forceinline__ Blocks blocks_of(const Sm90Forward& p, const AttentionTile& tile) {
  Blocks b;
  b.k_start = p.k_offsets[tile.sequence];
  b.nk = static_cast<int>(p.k_offsets[tile.sequence + 1] - b.k_start);
  b.q_start = p.q_offsets[tile.sequence];
  b.nq = static_cast<int>(p.q_offsets[tile.sequence + 1] - b.q_start);
  b.m0 = tile.tile * C::kM;
  const int last_row = min(b.m0 + C::kM, b.nq) - 1;
  b.first = visible(p.left, p.right, b.m0, b.nq, b.nk).first / C::kN;
  b.last = (visible(p.left, p.right, last_row, b.nq, b.nk).last + C::kN - 1) / C::kN;
  return b;
}

/// (2, 2, N / 8) a thread of the accumulator as rows x columns.
template <class Layout>
__device__ __forceinline__ auto rows_columns(Layout l) {
  return make_layout(make_layout(get<0, 1>(l), get<1>(l)),
                     make_layout(get<0, 0>(l), get<0, 2>(l), get<2>(l)));
}

/// The same registers as the A operand of the next product.
template <class Layout>
__device__ __forceinline__ auto as_operand(Layout l) {
  const auto inner = logical_divide(get<0>(l), Shape<Underscore, Underscore, _2>{});
  return make_layout(make_layout(get<0>(inner), get<1>(inner), get<2, 0>(inner)), get<1>(l),
                     make_layout(get<2, 1>(inner), get<2>(l)));
}

template <bool kZero, class Mma, class A, class B, class Acc>
__device__ __forceinline__ void issue(Mma& mma, const A& a, const B& b, Acc& acc) {
  warpgroup_fence_operand(acc);
  warpgroup_arrive();
  mma.accumulate_ = kZero ? GMMA::ScaleOut::Zero : GMMA::ScaleOut::One;
#pragma unroll
  for (int k = 0; k < size<2>(a); ++k) {
    cute::gemm(mma, a(_, _, k), b(_, _, k), acc);
    mma.accumulate_ = GMMA::ScaleOut::One;
  }
  warpgroup_commit_batch();
}

template <class C, class TmaQ, class TmaK, class TmaV>
__global__ void __launch_bounds__(C::kThreads, 1)
    forward(const __grid_constant__ Sm90Forward p, const __grid_constant__ TmaQ tma_q,
            const __grid_constant__ TmaK tma_k, const __grid_constant__ TmaV tma_v) {
  using E = typename C::Element;
  extern __shared__ char raw[];
  auto& s = *reinterpret_cast<typename C::Shared*>(raw);
  const int warpgroup = cutlass::canonical_warp_group_idx();
  if (threadIdx.x == 0) {
    FullBarrier::init(&s.full_q, 1);
    EmptyBarrier::init(&s.empty_q, 4 * C::kConsumers);
    for (int i = 0; i < C::kStages; ++i) {
      FullBarrier::init(&s.full_k[i], 1);
      FullBarrier::init(&s.full_v[i], 1);
      EmptyBarrier::init(&s.empty_k[i], 4 * C::kConsumers);
      EmptyBarrier::init(&s.empty_v[i], 4 * C::kConsumers);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  const int64_t begin = p.starts[blockIdx.x], end = p.starts[blockIdx.x + 1];

  if (warpgroup == 0) {  // producer
    cutlass::arch::warpgroup_reg_dealloc<24>();
    if (threadIdx.x / 32 != 0 || !cute::elect_one_sync()) return;
    const auto mq = tma_q.get_tma_tensor(make_shape(int(p.q_tokens), Int<C::kDim>{}, p.heads));
    const auto mk = tma_k.get_tma_tensor(make_shape(int(p.k_tokens), Int<C::kDim>{}, p.kv_heads));
    const auto mv = tma_v.get_tma_tensor(make_shape(int(p.k_tokens), Int<C::kDim>{}, p.kv_heads));
    const Tensor sq = make_tensor(make_smem_ptr(s.q), typename C::LayoutQ{});
    const Tensor sk = make_tensor(make_smem_ptr(s.k), typename C::LayoutK{});
    const Tensor sv = make_tensor(make_smem_ptr(s.v), typename C::LayoutK{});
    const auto slice_q = tma_q.get_slice(_0{});
    const auto slice_k = tma_k.get_slice(_0{});
    const auto slice_v = tma_v.get_slice(_0{});
    int stage = 0;
    uint32_t phase = 1, q_phase = 1;
    for (int64_t t = begin; t < end; ++t) {
      const AttentionTile tile = p.tiles[t];
      const Blocks b = blocks_of<C>(p, tile);
      if (b.first >= b.last) continue;
      const int kv_head = tile.head / (p.heads / p.kv_heads);
      const Tensor gq =
          local_tile(domain_offset(make_coord(int(b.q_start) + b.m0, _0{}), mq(_, _, tile.head)),
                     Shape<Int<C::kM>, Int<C::kDim>>{}, make_coord(_0{}, _0{}));
      const auto keys = [&](const auto& m) {
        return local_tile(domain_offset(make_coord(int(b.k_start), _0{}), m(_, _, kv_head)),
                          Shape<Int<C::kN>, Int<C::kDim>>{}, make_coord(_, _0{}));
      };
      const Tensor gk = keys(mk), gv = keys(mv);
      EmptyBarrier::wait(&s.empty_q, q_phase);
      q_phase ^= 1;
      FullBarrier::arrive_and_expect_tx(&s.full_q, C::kQBytes);
      copy(tma_q.with(s.full_q), slice_q.partition_S(gq), slice_q.partition_D(sq));
      for (int n = b.last - 1; n >= b.first; --n) {
        EmptyBarrier::wait(&s.empty_k[stage], phase);
        FullBarrier::arrive_and_expect_tx(&s.full_k[stage], C::kKBytes);
        copy(tma_k.with(s.full_k[stage]), slice_k.partition_S(gk(_, _, n)),
             slice_k.partition_D(sk(_, _, stage)));
        EmptyBarrier::wait(&s.empty_v[stage], phase);
        FullBarrier::arrive_and_expect_tx(&s.full_v[stage], C::kKBytes);
        copy(tma_v.with(s.full_v[stage]), slice_v.partition_S(gv(_, _, n)),
             slice_v.partition_D(sv(_, _, stage)));
        if (++stage == C::kStages) stage = 0, phase ^= 1;
      }
    }
    return;
  }

  // consumers
  cutlass::arch::warpgroup_reg_alloc<C::kConsumers == 2 ? 240 : 160>();
  const int thread = threadIdx.x - 128, group = warpgroup - 1;
  typename C::MmaQK mma_qk;
  typename C::MmaPV mma_pv;
  const auto my_qk = mma_qk.get_thread_slice(thread);
  const auto my_pv = mma_pv.get_thread_slice(thread);
  const Tensor sq = make_tensor(make_smem_ptr(s.q), typename C::LayoutQ{});
  const Tensor sk = make_tensor(make_smem_ptr(s.k), typename C::LayoutK{});
  const Tensor svt = make_tensor(make_smem_ptr(s.v), typename C::LayoutVt{});
  const Tensor so = make_tensor(make_smem_ptr(s.o), typename C::LayoutQ{});
  const Tensor fq = my_qk.make_fragment_A(my_qk.partition_A(sq));
  const Tensor fk = my_qk.make_fragment_B(my_qk.partition_B(sk));
  const Tensor fv = my_pv.make_fragment_B(my_pv.partition_B(svt));
  Tensor scores = partition_fragment_C(mma_qk, Shape<Int<C::kM>, Int<C::kN>>{});
  Tensor out = partition_fragment_C(mma_pv, Shape<Int<C::kM>, Int<C::kDim>>{});
  Tensor x = make_tensor(scores.data(), rows_columns(scores.layout()));
  Tensor y = make_tensor(out.data(), rows_columns(out.layout()));
  const Tensor places = make_tensor(
      my_qk.partition_C(make_identity_tensor(Shape<Int<C::kM>, Int<C::kN>>{})).data(),
      rows_columns(
          my_qk.partition_C(make_identity_tensor(Shape<Int<C::kM>, Int<C::kN>>{})).layout()));
  constexpr int kRows = decltype(size<0>(x))::value, kColumns = decltype(size<1>(x))::value;
  const bool leader = threadIdx.x % 32 == 0;
  const float to_log2 = p.scale * 1.44269504089f;

  int stage = 0;
  uint32_t phase = 0, q_phase = 0;
  for (int64_t t = begin; t < end; ++t) {
    const AttentionTile tile = p.tiles[t];
    const Blocks b = blocks_of<C>(p, tile);
    float max[kRows], sum[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) max[r] = -INFINITY, sum[r] = 0;
    clear(out);
    const auto mask = [&](int n) {
      const int n0 = n * C::kN, last_row = min(b.m0 + C::kM, b.nq) - 1;
      if (n0 >= visible(p.left, p.right, last_row, b.nq, b.nk).first &&
          n0 + C::kN <= visible(p.left, p.right, b.m0, b.nq, b.nk).last)
        return;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const KeyBounds keys =
            visible(p.left, p.right, b.m0 + int(get<0>(places(r, 0))), b.nq, b.nk);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const int j = n0 + int(get<1>(places(r, c)));
          if (j < keys.first || j >= keys.last) x(r, c) = -INFINITY;
        }
      }
    };
    // Scores to probabilities; what the rows so far must be multiplied with.
    const auto soften = [&](float(&correction)[kRows]) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float top = max[r];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) top = fmaxf(top, x(r, c));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const float shift = top == -INFINITY ? 0.f : top * to_log2;
        correction[r] = exp2f(max[r] * to_log2 - shift);
        max[r] = top;
        float total = 0;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          x(r, c) = exp2f(fmaf(x(r, c), to_log2, -shift));
          total += x(r, c);
        }
        sum[r] = sum[r] * correction[r] + total;
      }
    };
    Tensor operand = make_tensor<E>(as_operand(scores.layout()));
    const auto pack = [&] {
      const Tensor from = make_tensor(scores.data(), operand.layout());
#pragma unroll
      for (int i = 0; i < size(operand); ++i) operand(i) = static_cast<E>(from(i));
    };
    if (b.first < b.last) {
      FullBarrier::wait(&s.full_q, q_phase);
      q_phase ^= 1;
      FullBarrier::wait(&s.full_k[stage], phase);
      issue<true>(mma_qk, fq, fk(_, _, _, stage), scores);
      warpgroup_wait<0>();
      warpgroup_fence_operand(scores);
      if (leader) EmptyBarrier::arrive(&s.empty_k[stage]);
      mask(b.last - 1);
      float correction[kRows];
      soften(correction);
      pack();
      for (int n = b.last - 2; n >= b.first; --n) {
        const int value_stage = stage;
        const uint32_t value_phase = phase;
        if (++stage == C::kStages) stage = 0, phase ^= 1;
        FullBarrier::wait(&s.full_k[stage], phase);
        issue<true>(mma_qk, fq, fk(_, _, _, stage), scores);
        FullBarrier::wait(&s.full_v[value_stage], value_phase);
        issue<false>(mma_pv, operand, fv(_, _, _, value_stage), out);
        warpgroup_wait<1>();
        warpgroup_fence_operand(scores);
        if (leader) EmptyBarrier::arrive(&s.empty_k[stage]);
        mask(n);
        soften(correction);
        warpgroup_wait<0>();
        warpgroup_fence_operand(out);
        if (leader) EmptyBarrier::arrive(&s.empty_v[value_stage]);
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
          for (int c = 0; c < int(size<1>(y)); ++c) y(r, c) *= correction[r];
        pack();
      }
      if (leader) EmptyBarrier::arrive(&s.empty_q);
      FullBarrier::wait(&s.full_v[stage], phase);
      issue<false>(mma_pv, operand, fv(_, _, _, stage), out);
      warpgroup_wait<0>();
      warpgroup_fence_operand(out);
      if (leader) EmptyBarrier::arrive(&s.empty_v[stage]);
      if (++stage == C::kStages) stage = 0, phase ^= 1;
    }
    // Output: through shared memory, so that rows leave in 16 bytes a thread.
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
      const float inverse = sum[r] > 0 ? 1.f / sum[r] : 0.f;
#pragma unroll
      for (int c = 0; c < int(size<1>(y)); ++c) y(r, c) *= inverse;
      const int row = b.m0 + int(get<0>(places(r, 0)));
      if (thread % 4 == 0 && row < b.nq)
        p.lse[int64_t{tile.head} * p.q_tokens + b.q_start + row] =
            sum[r] > 0 ? max[r] * p.scale + logf(sum[r]) : -INFINITY;
    }
    Tensor rounded = make_tensor<E>(out.layout());
#pragma unroll
    for (int i = 0; i < size(out); ++i) rounded(i) = static_cast<E>(out(i));
    const auto to_shared = make_tiled_copy_C(Copy_Atom<SM90_U32x4_STSM_N, E>{}, mma_pv);
    const auto mine = to_shared.get_thread_slice(thread);
    cutlass::arch::NamedBarrier::sync(128, 1 + group);  // the last tile's rows have been read
    copy(to_shared, mine.retile_S(rounded), mine.partition_D(so));
    cutlass::arch::NamedBarrier::sync(128, 1 + group);
    constexpr int kVector = 16 / sizeof(E), kPieces = C::kDim / kVector;
    auto* o = static_cast<E*>(p.o) + b.q_start * p.o_token + tile.head * p.o_head;
#pragma unroll
    for (int i = thread % 128; i < 64 * kPieces; i += 128) {
      const int row = 64 * group + i / kPieces, piece = i % kPieces;
      if (b.m0 + row >= b.nq) continue;
      *reinterpret_cast<uint4*>(o + (b.m0 + row) * p.o_token + piece * kVector) =
          *reinterpret_cast<const uint4*>(&so(row, piece * kVector));
    }
  }
}

template <class C>
void launch(const Sm90Forward& p) {
  using E = typename C::Element;
  const auto view = [](void* data, int64_t tokens, int64_t heads, int64_t token, int64_t head) {
    return make_tensor(make_gmem_ptr(static_cast<E const*>(data)),
                       make_shape(int(tokens), Int<C::kDim>{}, int(heads)),
                       make_stride(token, _1{}, head));
  };
  const auto q = view(p.q, p.q_tokens, p.heads, p.q_token, p.q_head);
  const auto k = view(p.k, p.k_tokens, p.kv_heads, p.k_token, p.k_head);
  const auto v = view(p.v, p.k_tokens, p.kv_heads, p.v_token, p.v_head);
  const auto tma_q = make_tma_copy(SM90_TMA_LOAD{}, q, typename C::LayoutQ{},
                                   Shape<Int<C::kM>, Int<C::kDim>>{}, _1{});
  const auto tile = take<0, 2>(typename C::LayoutK{});
  const auto tma_k =
      make_tma_copy(SM90_TMA_LOAD{}, k, tile, Shape<Int<C::kN>, Int<C::kDim>>{}, _1{});
  const auto tma_v =
      make_tma_copy(SM90_TMA_LOAD{}, v, tile, Shape<Int<C::kN>, Int<C::kDim>>{}, _1{});
  auto* kernel = forward<C, decltype(tma_q), decltype(tma_k), decltype(tma_v)>;
  constexpr int kBytes = sizeof(typename C::Shared);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  kernel<<<p.ctas, C::kThreads, kBytes, p.stream>>>(p, tma_q, tma_k, tma_v);
}

void attention_forward_sm90(const Sm90Forward& p, int head_dim) {
  using B = cutlass::bfloat16_t;
  if (head_dim == 128) launch<ForwardConfig<B, 128, 128, 2>>(p);
  if (head_dim == 64) launch<ForwardConfig<B, 64, 128, 2>>(p);
}

}  // namespace tautline::kernels
