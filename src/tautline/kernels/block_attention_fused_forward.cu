// Block attention forward in one pass: q, k and v are read once, o is written once. Bound by
// memory: 8 D bytes a token and head.
#include "tautline/kernels/block_attention_fused.cuh"

namespace tautline::kernels {
namespace fused {
namespace {

constexpr int kGroups = 4, kTiles = 3;

template <class T, int D, RopeLayout kRope, bool kTurnValues>
__global__ void __launch_bounds__(kGroups* kGroupThreads, 1) attend(const Problem a) {
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
                     group * kTiles * kTileBytes<D>,
                 k = q + kTileBytes<D>, v = k + kTileBytes<D>;
  const auto log2_scale = static_cast<float>(p.scale * 1.4426950408889634);
  const auto sync = [&] { mma::sync_threads(1 + group, kGroupThreads); };
  const auto load = [&](const HeadsView& view, const Item& x, int head, uint32_t tile) {
    load_plain<D>(row_of<T>(view, x, head), view.token_stride, x.rows, tile, thread);
  };
  const int share = static_cast<int>(p.heads / p.kv_heads);
  const auto load_scores = [&](const Item& x) {
    load(p.q, x, x.head, q);
    load(p.k, x, x.head / share, k);
  };

  const int groups = static_cast<int>(blockDim.x) / kGroupThreads;
  const int64_t step = int64_t{gridDim.x} * groups;
  int64_t index = int64_t{blockIdx.x} * groups + group;
  Item item = item_at(a, index);
  load_scores(item);
  mma::end_batch();
  load(p.v, item, item.head / share, v);
  mma::end_batch();
  while (item.rows > 0) {
    const Item next = item_at(a, index += step);
    const int pairs = p.causal ? warp + 1 : (item.rows + 15) / 16;
    mma::wait_for_batches<1>();
    if constexpr (kRope != RopeLayout::kNone) {
      turn_tiles<D, T, kRope>({q, k}, thread, angles);
    }
    sync();
    float score[8][4] = {};
    product_of_rows<D, T>(score, q, k, warp, pairs, lane);
    soften(score, warp, item.rows, p.causal, log2_scale, lane);
    sync();  // q and k have been read
    load_scores(next);
    mma::end_batch();
    mma::wait_for_batches<1>();
    if constexpr (kTurnValues) turn_tiles<D, T, kRope>({v}, thread, angles);
    sync();
    float sum[D / 8][4] = {};
    weighted_rows<D, T>(sum, score, v, pairs, lane);
    sync();  // v has been read
    load(p.v, next, next.head / share, v);
    mma::end_batch();
    if constexpr (kTurnValues) {
      const int64_t place = a.blocks.place[item.block];
      turn_sums<D, kRope>(sum, lane,
                          [&](int, int c) { return two_turns_at(place, c, a.log2_frequency); });
    }
    mma::store_rows<T>(sum, row_of<T>(p.o, item, item.head) + 16 * warp * p.o.token_stride,
                       p.o.token_stride, item.rows - 16 * warp, lane);
    item = next;
  }
}

}  // namespace

}  // namespace fused

bool fused_takes(const BlockAttention& p, bool backward) {
  const auto fits = [](const HeadsView& x) {
    return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.token_stride % 8 == 0 &&
           x.head_stride % 8 == 0;
  };
  if (p.head_dim != 64 && p.head_dim != 128) return false;
  if (!fits(p.q) || !fits(p.k) || !fits(p.v)) return false;
  if (!backward) return fits(p.o);
  return p.heads == p.kv_heads && fits(p.d_o) && fits(p.d_q) && fits(p.d_k) && fits(p.d_v);
}

void block_attention_fused_forward(const BlockAttention& p, const BlockPlaces& blocks) {
  using namespace fused;
  with_kind(p, [&](auto t, auto d, auto rope, auto values) {
    auto* kernel = attend<decltype(t), d(), rope(), values()>;
    launch(kernel, problem_of(p, blocks), kGroups, kTableBytes<d(), rope()>,
           kTiles * kTileBytes<d()>);
  });
}

}  // namespace tautline::kernels
