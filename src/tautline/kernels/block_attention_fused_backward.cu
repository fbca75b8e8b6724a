// Block attention backward in one pass: q, k, v and d_o are read once, d_q, d_k and d_v written
// once, turned back in FP32. Bound by memory: 14 D bytes a token and head. For cards other than
// Hopper, which has its own (block_attention_backward_sm90.cu).
#include "tautline/kernels/block_attention_fused.cuh"

namespace tautline::kernels {
namespace fused {
namespace {

constexpr int kGroups = 3;
/// q, k, d_o, v, and what the two squares of weights and their gradients need beyond v's place.
template <int D>
constexpr int kTiles = D == 64 ? 5 : 4;

/// sum[16 rows of m, D] += w^T b over the block's rows, both tiles; rows [16 first, 16 last).
template <int D, class T>
__device__ __forceinline__ void product_of_columns(float (&sum)[D / 8][4], uint32_t w, uint32_t b,
                                                   int m, int first, int last, int lane) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k < first || k >= last) continue;
    uint32_t x[4];
    mma::left_transposed<kRows>(x, w, m, k, lane);
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      uint32_t y[4];
      mma::right_of_columns<D>(y, b, n, k, lane);
      mma::multiply<T>(sum[2 * n], x, y[0], y[1]);
      mma::multiply<T>(sum[2 * n + 1], x, y[2], y[3]);
    }
  }
}

/// A warp's 16 rows of [64, 64] to a tile.
template <class T>
__device__ __forceinline__ void store_square(const float (&x)[8][4], uint32_t tile, int m,
                                             int lane) {
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      asm volatile(
          "st.shared.b32 [%0], %1;" ::"r"(
              tile + mma::place<kRows>(16 * m + (lane >> 2) + 8 * half, n) + 4 * (lane & 3)),
          "r"(mma::pack<T>(x[n][2 * half], x[n][2 * half + 1]))
          : "memory");
}

template <class T, int D, RopeLayout kRope, bool kTurnValues>
__global__ void __launch_bounds__(kGroups* kGroupThreads, 1) attend_backward(const Problem a) {
  extern __shared__ __align__(1024) char shared[];
  const Angles<D> angles{reinterpret_cast<float4*>(shared)};
  if constexpr (kRope != RopeLayout::kNone) {
    angles.fill(a.log2_frequency);
    __syncthreads();
  }
  const BlockAttention& p = a.p;
  const int group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  const int warp = thread / kWarp, lane = thread % kWarp;
  const uint32_t q = mma::shared_address(shared) + kTableBytes<D, kRope> +
                     group * kTiles<D> * kTileBytes<D>,
                 k = q + kTileBytes<D>, d_o = k + kTileBytes<D>, v = d_o + kTileBytes<D>;
  const uint32_t weights = v, d_scores = v + kRows * kRows * 2;  // once v has been read
  static_assert(2 * kRows * kRows * 2 <= (kTiles<D> - 3) * kTileBytes<D>);
  const auto back = [&](int row, int c) {
    const float4 turn = angles(16 * warp + row, c);
    return make_float4(turn.x, -turn.y, turn.z, -turn.w);
  };
  const auto log2_scale = static_cast<float>(p.scale * 1.4426950408889634);
  const auto scale = static_cast<float>(p.scale);
  const auto sync = [&] { mma::sync_threads(1 + group, kGroupThreads); };
  const auto load = [&](const HeadsView& view, const Item& x, uint32_t tile) {
    load_plain<D>(row_of<T>(view, x, x.head), view.token_stride, x.rows, tile, thread);
  };
  const auto store = [&](const float(&sum)[D / 8][4], const HeadsView& view, const Item& x) {
    mma::store_rows<T>(sum, row_of<T>(view, x, x.head) + 16 * warp * view.token_stride,
                       view.token_stride, x.rows - 16 * warp, lane);
  };

  const int groups = static_cast<int>(blockDim.x) / kGroupThreads;
  const int64_t step = int64_t{gridDim.x} * groups;
  int64_t index = int64_t{blockIdx.x} * groups + group;
  Item item = item_at(a, index);
  load(p.q, item, q);
  load(p.k, item, k);
  mma::end_batch();
  load(p.v, item, v);
  load(p.d_o, item, d_o);
  mma::end_batch();
  while (item.rows > 0) {
    const Item next = item_at(a, index += step);
    const int tiles = (item.rows + 15) / 16;  // of 16 rows
    const int pairs = p.causal ? warp + 1 : tiles;
    mma::wait_for_batches<1>();
    if constexpr (kRope != RopeLayout::kNone) {
      turn_tiles<D, T, kRope>({q, k}, thread, angles);
    }
    sync();
    float weight[8][4] = {}, d_score[8][4] = {};
    product_of_rows<D, T>(weight, q, k, warp, pairs, lane);
    soften(weight, warp, item.rows, p.causal, log2_scale, lane);
    mma::wait_for_batches<0>();
    if constexpr (kTurnValues) {
      const int64_t place = a.blocks.place[item.block];
      turn_tiles<D, T, kRope>({v}, thread, angles);
      turn_tiles<D, T, kRope>(
          {d_o}, thread, [&](int, int c) { return two_turns_at(-place, c, a.log2_frequency); });
    }
    sync();
    product_of_rows<D, T>(d_score, d_o, v, warp, pairs, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float delta = 0;
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) delta += weight[n][e] * d_score[n][e];
      delta += __shfl_xor_sync(0xffffffffu, delta, 1);
      delta += __shfl_xor_sync(0xffffffffu, delta, 2);
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e)
          d_score[n][e] = weight[n][e] * (d_score[n][e] - delta) * scale;
    }
    sync();  // v has been read
    store_square<T>(weight, weights, warp, lane);
    store_square<T>(d_score, d_scores, warp, lane);
    {
      float sum[D / 8][4] = {};
      weighted_rows<D, T>(sum, d_score, k, pairs, lane);
      sync();  // k has been read, the squares are written
      load(p.k, next, k);
      turn_sums<D, kRope>(sum, lane, back);
      store(sum, p.d_q, item);
    }
    const int first = p.causal ? warp : 0;
    {
      float sum[D / 8][4] = {};
      product_of_columns<D, T>(sum, d_scores, q, warp, first, tiles, lane);
      sync();  // q has been read
      load(p.q, next, q);
      mma::end_batch();
      turn_sums<D, kRope>(sum, lane, back);
      store(sum, p.d_k, item);
    }
    {
      float sum[D / 8][4] = {};
      product_of_columns<D, T>(sum, weights, d_o, warp, first, tiles, lane);
      sync();  // d_o and the weights have been read
      load(p.v, next, v);
      load(p.d_o, next, d_o);
      mma::end_batch();
      if constexpr (kTurnValues) turn_sums<D, kRope>(sum, lane, back);
      store(sum, p.d_v, item);
    }
    item = next;
  }
}

}  // namespace

}  // namespace fused

void block_attention_fused_backward(const BlockAttention& p, const BlockPlaces& blocks) {
  using namespace fused;
  with_kind(p, [&](auto t, auto d, auto rope, auto values) {
    auto* kernel = attend_backward<decltype(t), d(), rope(), values()>;
    launch(kernel, problem_of(p, blocks), kGroups, kTableBytes<d(), rope()>,
           kTiles<d()> * kTileBytes<d()>);
  });
}

}  // namespace tautline::kernels
