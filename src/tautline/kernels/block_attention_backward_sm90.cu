// Block attention backward on Hopper in one pass: q, k, v and d_o are read once, d_q, d_k and d_v
// written once, turned back in FP32. Bound by memory: 14 D bytes a token and head. A group of four
// warps takes a block of one head, as in block_attention_fused.cuh. TMA loads its tiles, those of
// the next block as soon as the last product of this one has read theirs, and fills rows past the
// sequence with zeros. Products are the group's (wgmma): they read each tile once where four warps
// of their own would read it four times, and take half the instructions.
//
// What made it slower (lab/attention/README.md has the times): the next block's tiles brought to L2
// a phase ahead; sums kept and stored under the next product; angles in a table.
#include <type_traits>

#include "tautline/kernels/block_attention_backward_sm90.cuh"
#include "tautline/kernels/hopper.cuh"
#include "tautline/kernels/hopper_map.h"

namespace tautline::kernels {
namespace fused {
namespace {

using namespace hopper;

constexpr int kGroups = 3;
/// q, k, d_o, v, and what the two squares of weights and their gradients need beyond v's place.
template <int D>
constexpr int kTiles = D == 64 ? 5 : 4;
constexpr int kPartBytes = kRows * 128, kSquareBytes = kRows * kRows * 2;

/// Of the angles of eight places, in front of the tiles, which start on 1024 bytes.
template <RopeLayout kRope>
constexpr int kStepBytes = kRope == RopeLayout::kNone ? 0 : 1024;

struct Maps {
  CUtensorMap q, k, v, d_o;
};

template <class T>
using Half = std::conditional_t<std::is_same_v<T, BFloat16>, __nv_bfloat16, __half>;

// Where step k of a product lies in its operands: over D, 16 columns of both; over rows, 16 rows.
__device__ __forceinline__ constexpr uint32_t columns_at(int k) {
  return k / 4 * kPartBytes + k % 4 * 32;
}
__device__ __forceinline__ constexpr uint32_t rows_at(int k) { return k * 16 * 128; }

/// From one item of a group to its next: `blocks` and `heads` further.
struct Step {
  int64_t blocks;
  int heads;
};
__device__ __forceinline__ Step step_of(const Problem& a, int groups) {
  const int heads = static_cast<int>(a.p.heads);
  return {groups / heads, groups % heads};
}
__device__ __forceinline__ Item item_after(const Problem& a, const Item& x, const Step& step) {
  Item y;
  y.block = x.block + step.blocks;
  y.head = x.head + step.heads;
  if (y.head >= a.p.heads) y.head -= static_cast<int>(a.p.heads), ++y.block;
  if (y.block >= a.p.blocks) return y;
  y.token = a.blocks.token[y.block];
  y.rows = static_cast<int>(a.blocks.token[y.block + 1] - y.token);
  return y;
}

template <class T, int D, RopeLayout kRope, bool kTurnValues>
__global__ void __launch_bounds__(kGroups* kGroupThreads, 1)
    attend_backward(const __grid_constant__ Problem a, const __grid_constant__ Maps maps) {
  using E = Half<T>;
  extern __shared__ __align__(1024) char shared[];
  __shared__ uint64_t barriers[kGroups][2];
  constexpr bool kTurns = kRope != RopeLayout::kNone;
  const BlockAttention& p = a.p;
  const int group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  const int warp = thread / kWarp, lane = thread % kWarp;
  uint64_t *const scores_full = &barriers[group][0], *const values_full = &barriers[group][1];
  if (thread == 0) {
    barrier_init(scores_full, 2);  // q's load and k's
    barrier_init(values_full, 1);
    barrier_init_fence();
  }
  const Turns<D, kRope> turns(reinterpret_cast<float4*>(shared), 16 * warp + (lane >> 2), lane,
                              a.log2_frequency);
  __syncthreads();
  char* const q = shared + kStepBytes<kRope> + group * kTiles<D> * kTileBytes<D>;
  char *const k = q + kTileBytes<D>, *const d_o = k + kTileBytes<D>, *const v = d_o + kTileBytes<D>;
  char *const weights = v, *const d_scores = v + kSquareBytes;  // once v has been read
  static_assert(2 * kSquareBytes <= (kTiles<D> - 3) * kTileBytes<D>);
  const auto turn = [&](int i, int half) { return turns.at(i, half); };
  const auto back = [&](int i, int half) {
    const float4 t = turns.at(i, half);
    return make_float4(t.x, -t.y, t.z, -t.w);
  };
  const auto log2_scale = static_cast<float>(p.scale * 1.4426950408889634);
  const auto scale = static_cast<float>(p.scale);
  const auto sync = [&] { hopper::sync_threads(1 + group, kGroupThreads); };
  const auto load = [&](const CUtensorMap& map, const Item& x, uint64_t* barrier, char* tile) {
    barrier_expect(barrier, kTileBytes<D>);
#pragma unroll
    for (int c = 0; c < D / 64; ++c)
      tma_load(&map, barrier, tile + c * kPartBytes, 64 * c, kRows - x.rows,
               static_cast<int>(x.token) + x.rows, x.head);
  };
  const auto load_values = [&](const Item& x) {
    barrier_expect(values_full, 2 * kTileBytes<D>);
#pragma unroll
    for (int c = 0; c < D / 64; ++c) {
      tma_load(&maps.v, values_full, v + c * kPartBytes, 64 * c, kRows - x.rows,
               static_cast<int>(x.token) + x.rows, x.head);
      tma_load(&maps.d_o, values_full, d_o + c * kPartBytes, 64 * c, kRows - x.rows,
               static_cast<int>(x.token) + x.rows, x.head);
    }
  };
  const auto store = [&](auto turned, float(&sums)[D / 2], const HeadsView& view, const Item& x) {
    auto& sum = reinterpret_cast<float(&)[D / 8][4]>(sums);
    T* const out = row_of<T>(view, x, x.head) + 16 * warp * view.token_stride;
    if constexpr (turned()) {
      turn_columns<D, kRope>(sum, back);
      store_columns<T>(sum, out, view.token_stride, x.rows - 16 * warp, lane);
    } else {
      mma::store_rows<T>(sum, out, view.token_stride, x.rows - 16 * warp, lane);
    }
  };
  constexpr std::bool_constant<kTurns> kTurned{};
  constexpr std::bool_constant<kTurnValues> kValuesTurned{};
  const Tile q_tile(q), k_tile(k), v_tile(v), o_tile(d_o);
  const Tile q_down(q, kPartBytes), k_down(k, kPartBytes), o_down(d_o, kPartBytes);
  const Tile weights_down(weights), scores_down(d_scores);

  const int groups = static_cast<int>(blockDim.x) / kGroupThreads;
  const Step step = step_of(a, static_cast<int>(gridDim.x) * groups);
  Item item = item_at(a, int64_t{blockIdx.x} * groups + group);
  if (thread == 0 && item.rows > 0) {
    load(maps.k, item, scores_full, k);
    load(maps.q, item, scores_full, q);
    load_values(item);
  }
  for (uint32_t phase = 0; item.rows > 0; phase ^= 1) {
    const Item next = item_after(a, item, step);
    const bool loads = thread == 0 && next.rows > 0;
    barrier_wait(scores_full, phase);
    Words<D> left;
    if constexpr (kTurns)
      turn_rows<D, T, kRope>({shared_address(k), shared_address(q)}, warp, lane, left, turn);
    if constexpr (kTurnValues) {
      barrier_wait(values_full, phase);
      Words<D> unused;
      turn_rows<D, T, kRope>({shared_address(v)}, warp, lane, unused, turn);
      const int64_t place = a.blocks.place[item.block];
      turn_rows<D, T, kRope>({shared_address(d_o)}, warp, lane, unused, [&](int i, int) {
        return two_turns_at(-place, turns.pair(i, lane & 3), a.log2_frequency);
      });
    }
    if constexpr (kTurns) {
      fence_async_shared();
      sync();
    }
    float weights_flat[32], d_flat[32];
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      if constexpr (kTurns) {
        const uint32_t x[4] = {left[0][2 * i], left[1][2 * i], left[0][2 * i + 1],
                               left[1][2 * i + 1]};
        mma_registers_shared<E, 64>(x, k_tile.at(columns_at(i)), weights_flat, i > 0);
      } else {
        mma_shared<E, 64>(q_tile.at(columns_at(i)), k_tile.at(columns_at(i)), weights_flat, i > 0);
      }
    }
    wgmma_commit();
    if constexpr (!kTurnValues) barrier_wait(values_full, phase);
#pragma unroll
    for (int i = 0; i < D / 16; ++i)
      mma_shared<E, 64>(o_tile.at(columns_at(i)), v_tile.at(columns_at(i)), d_flat, i > 0);
    wgmma_commit();
    wgmma_wait<1>();
    hold(weights_flat);
    auto& weight = reinterpret_cast<float(&)[8][4]>(weights_flat);
    auto& d_score = reinterpret_cast<float(&)[8][4]>(d_flat);
    soften</*kFlush=*/true>(weight, warp, item.rows, p.causal, log2_scale, lane);
    wgmma_wait<0>();
    hold(d_flat);
    gradient_of_scores(d_score, weight, scale);
    uint32_t w[4][4], d[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      as_left<T>(w[i], weight[2 * i], weight[2 * i + 1]);
      as_left<T>(d[i], d_score[2 * i], d_score[2 * i + 1]);
    }
    {
      float sum[D / 2];
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) mma_registers<E, D>(d[i], k_down.at(rows_at(i)), sum, i > 0);
      wgmma_commit();
      sync();  // v has been read
      store_square(w, shared_address(weights), warp, lane);
      store_square(d, shared_address(d_scores), warp, lane);
      fence_async_shared();
      wgmma_wait<0>();
      hold(sum);
      sync();  // k has been read, the squares are written
      if (loads) load(maps.k, next, scores_full, k);
      store(kTurned, sum, p.d_q, item);
    }
    {
      float sum[D / 2];
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i)
        mma_columns<E, D>(scores_down.at(rows_at(i)), q_down.at(rows_at(i)), sum, i > 0);
      wgmma_commit();
      wgmma_wait<0>();
      hold(sum);
      sync();  // q has been read
      if (loads) load(maps.q, next, scores_full, q);
      store(kTurned, sum, p.d_k, item);
    }
    {
      float sum[D / 2];
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i)
        mma_columns<E, D>(weights_down.at(rows_at(i)), o_down.at(rows_at(i)), sum, i > 0);
      wgmma_commit();
      wgmma_wait<0>();
      hold(sum);
      sync();  // d_o and the weights have been read
      if (loads) load_values(next);
      store(kValuesTurned, sum, p.d_v, item);
    }
    item = next;
  }
}

}  // namespace
}  // namespace fused

bool block_attention_backward_sm90_takes(const BlockAttention& p) {
  constexpr int64_t kMostTokens = int64_t{1} << 30;
  return fused_takes(p, /*backward=*/true) && p.tokens < kMostTokens &&
         hopper::fits_map(p.q, p.heads) && hopper::fits_map(p.k, p.heads) &&
         hopper::fits_map(p.v, p.heads) && hopper::fits_map(p.d_o, p.heads) && on_hopper();
}

void block_attention_backward_sm90(const BlockAttention& p, const BlockPlaces& blocks) {
  using namespace fused;
  const auto map = [&](const HeadsView& view) {
    return hopper::tensor_map(view, p.element, p.tokens, p.heads, p.head_dim, kRows);
  };
  const Maps maps{map(p.q), map(p.k), map(p.v), map(p.d_o)};
  with_kind(p, [&](auto t, auto d, auto rope, auto values) {
    auto* kernel = attend_backward<decltype(t), d(), rope(), values()>;
    launch(kernel, problem_of(p, blocks), kGroups, kStepBytes<rope()>,
           kTiles<d()> * kTileBytes<d()>, maps);
  });
}

}  // namespace tautline::kernels
