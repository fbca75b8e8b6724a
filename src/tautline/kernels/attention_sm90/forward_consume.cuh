// A warpgroup of the Hopper forward: of each pass its 64 queries' scores, weights and outputs.
#pragma once

#include <type_traits>

#include "tautline/kernels/attention_sm90/forward_config.cuh"
#include "tautline/kernels/mma.cuh"

namespace tautline::kernels::sm90 {

template <class C>
__device__ __forceinline__ void consume(const ForwardArguments& p, typename C::Shared& s,
                                        int group) {
  using namespace hopper;
  using E = typename C::Element;
  constexpr int kN = C::kKeys, kD = C::kKeyDim, kV = C::kValueDim, kStages = C::kStages;
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const int my_row = thread / 32 * kWarpRows + lane / 4, my_column = lane % 4 * 2;
  float scores[kN / 2], out[kV / 2];
  uint32_t weights[kN / 4];
  typename C::Score score;
  Cursor<C::kDepth> at_pass;
  Cursor<kStages> at_k, at_v;
  uint64_t* storing = nullptr;  // the barrier to tell once the last output has left
  const auto stored = [&] {
    if (storing != nullptr && lane == 0) {
      tma_store_wait_read();
      barrier_arrive(storing);
    }
    storing = nullptr;
  };

  const auto done_with_pass = [&] {
    if (lane == 0) barrier_arrive(&s.empty_pass[at_pass.stage]);
  };

  for (;; at_pass.next()) {
    barrier_wait(&s.full_pass[at_pass.stage], at_pass.phase);
    const Pass pass = s.pass[at_pass.stage];
    if (pass.queries < 0) break;
    const int part = group - pass.group + (group < pass.group ? C::kGroups : 0);
    const int slot = pass.slot + part - (pass.slot + part < C::kSlots ? 0 : C::kSlots);
    const bool keep = pass.keep;
    const int32_t row = part * kRows, count = min(kRows, pass.queries - row);
    int32_t begin = pass.block, end = pass.block;  // blocks that my rows see
    Keys top{}, bottom{};
    if (count > 0) {
      top = keys_of(p, pass.diagonal, pass.keys, row);
      bottom = keys_of(p, pass.diagonal, pass.keys, row + count - 1);
      if (bottom.last > top.first) begin = top.first / kN, end = (bottom.last + kN - 1) / kN;
    }
    const Cursor<kStages> start = at_k;
    const auto release_k = [&](int stage) {
      if (!keep && lane == 0) barrier_arrive(&s.empty_k[stage]);
    };
    const auto release_v = [&](int stage) {
      if (!keep && lane == 0) barrier_arrive(&s.empty_v[stage]);
    };
    const auto skip = [&](int32_t blocks) {
      for (; blocks > 0; --blocks) {
        barrier_wait(&s.full_k[at_k.stage], at_k.phase);
        release_k(at_k.stage);
        at_k.next();
        barrier_wait(&s.full_v[at_v.stage], at_v.phase);
        release_v(at_v.stage);
        at_v.next();
      }
    };
    const Tile q_tile(s.q[slot]);
    const auto multiply_qk = [&](int stage) {
      const Tile k_tile(s.k[stage]);
      hold(scores);
      wgmma_fence();
#pragma unroll
      for (int d = 0; d < kD / 16; ++d)
        mma_shared<E, kN>(q_tile.at(d / 4 * kRows * 128 + d % 4 * 32),
                          k_tile.at(d / 4 * kN * 128 + d % 4 * 32), scores, d > 0);
      wgmma_commit();
    };
    const auto multiply_pv = [&](int stage) {
      const Tile v_tile(s.v[stage], kN * 128);
      hold(out);
      wgmma_fence();
#pragma unroll
      for (int n = 0; n < kN / 16; ++n)
        mma_registers<E, kV>(weights + 4 * n, v_tile.at(n * 16 * 128), out, true);
      wgmma_commit();
    };
    const auto multiply_again = [&](int stage) {  // a warp's scores, by itself
      static_assert(kN == 64);                    // tiles of mma.cuh
      using T = std::conditional_t<std::is_same_v<E, __half>, Float16, BFloat16>;
      const uint32_t queries = shared_address(s.q[slot]), keys = shared_address(s.k[stage]);
      auto* tiles = reinterpret_cast<float(*)[4]>(scores);
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) scores[i] = 0;
#pragma unroll 1
      for (int d = 0; d < kD / 16; ++d) {
        uint32_t a[4], b[4];
        mma::left<kD>(a, queries, thread / 32, d, lane);
#pragma unroll
        for (int n = 0; n < kN / 16; ++n) {
          mma::right_of_rows<kD>(b, keys, n, d, lane);
          mma::multiply<T>(tiles[2 * n], a, b[0], b[1]);
          mma::multiply<T>(tiles[2 * n + 1], a, b[2], b[3]);
        }
      }
    };
    // Whether any of the block's pairs is hidden, or it is the first that its first row sees.
    const auto mask = [&](int32_t block) {
      const int32_t at = block * kN;
      const bool tail = C::Score::kMaskTail || p.right >= 0;
      if (at >= bottom.first && (!tail || at + kN <= top.last)) return at + kN == top.last;
      // A row's columns, 8 j and 8 j + 1 from low to high: as bits, which go to predicates eight at a time.
      static_assert(kN / 4 < 32);
      const auto below = [](uint32_t column) {
        return (1u << min(column / 8 * 2 + min(column % 8, 2u), kN / 4u)) - 1;
      };
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Keys seen = keys_of(p, pass.diagonal, pass.keys, row + my_row + 8 * i);
        const int32_t low = max(seen.first - at - my_column, 0);
        const uint32_t kept = below(max(seen.last - at - my_column, 0)) & ~below(low);
#pragma unroll
        for (int n = 0; n < kN / 4; ++n)
          if (!(kept >> n & 1))
            scores[n / 2 * 4 + 2 * i + n % 2] = C::Score::kMaskTail ? -INFINITY : 0;
      }
      return true;
    };
    const auto round_weights = [&] {
#pragma unroll
      for (int i = 0; i < kN / 4; ++i) weights[i] = pack<E>(scores[2 * i], scores[2 * i + 1]);
    };
    float factor[2];
    const auto open = [&] {  // the first block's weights
      barrier_wait(&s.full_k[at_k.stage], at_k.phase);
      multiply_qk(at_k.stage);
      stored();
      wgmma_wait<0>();
      hold(scores);
      release_k(at_k.stage);
      at_k.next();
      mask(end - 1);
      score.weigh_first(scores);
      round_weights();
    };
    const auto step = [&](int32_t block) {  // the last weights' output, this block's weights
      multiply_qk(at_k.stage);
      barrier_wait(&s.full_v[at_v.stage], at_v.phase);
      multiply_pv(at_v.stage);
      wgmma_wait<1>();
      hold(scores);
      if (!C::Score::kRescales) release_k(at_k.stage);
      const bool look = mask(block);
      const bool grew = score.weigh(scores, factor, look, [&] { multiply_again(at_k.stage); });
      if (C::Score::kRescales) release_k(at_k.stage);
      at_k.next();
      // Weights are found under the product, and rounded (registers are short) after it. The wait
      // for keys keeps them apart: ptxas moves the wait for the product up to the next branch.
      hold(scores);
      if (block > begin) barrier_wait(&s.full_k[at_k.stage], at_k.phase);
      wgmma_wait<0>();
      hold(out);
      hold(scores);
      release_v(at_v.stage);
      at_v.next();
      if (C::Score::kRescales && grew)
#pragma unroll
        for (int i = 0; i < kV / 2; ++i) out[i] *= factor[i / 2 % 2];
      round_weights();
    };

    skip(pass.block + pass.blocks - max(end, begin));
    score.begin(p.numbers);
#pragma unroll
    for (int i = 0; i < kV / 2; ++i) out[i] = 0;  // a flag in the first product costs registers
    if (begin < end) {
      open();
      if (begin < end - 1) barrier_wait(&s.full_k[at_k.stage], at_k.phase);
#pragma unroll 1
      for (int32_t n = end - 2; n >= begin; --n) step(n);
      barrier_wait(&s.full_v[at_v.stage], at_v.phase);
      multiply_pv(at_v.stage);
      wgmma_wait<0>();
      hold(out);
      release_v(at_v.stage);
      at_v.next();
    } else {
      stored();
    }
    skip(begin - pass.block);
    if (keep) at_k = at_v = start;
    if (count <= 0) {
      done_with_pass();
      continue;
    }

    if constexpr (C::Score::kRescales) {
      float lse[2];
      score.finish(factor, lse);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (lane % 4 == 0 && my_row + 8 * i < count)
          p.lse[pass.head * p.rows + pass.row + row + my_row + 8 * i] = lse[i];
    } else {
      factor[0] = factor[1] = score.finish(p.numbers.finish);
    }
    // Each warp stores its rows over its own of q; wgmma may have read others' too.
    sync_threads(1 + group, 128);
    char* to = s.q[slot];
#pragma unroll
    for (int h = 0; h < kV / 64; ++h)
      mma::put_rows(shared_address(to + (h * kRows + thread / 32 * kWarpRows) * 128), lane,
                    [&](int n) {
                      const float* x = out + 32 * h + 2 * n;
                      return pack<E>(x[0] * factor[n % 2], x[1] * factor[n % 2]);
                    });
    fence_async_shared();
    __syncwarp();
    const int32_t warp_row = thread / 32 * kWarpRows, rows = min(kWarpRows, count - warp_row);
    if (lane == 0 && rows > 0) {
#pragma unroll
      for (int h = 0; h < kV / 64 && 64 * h < p.value_dim; ++h)
        tma_store(&p.o, to + h * kRows * 128 + warp_row * 128, 64 * h, kWarpRows - rows,
                  pass.row + row + warp_row + rows, pass.head);
      tma_store_commit();
    }
    done_with_pass();
    storing = &s.empty_q[slot];
  }
  stored();
}

}  // namespace tautline::kernels::sm90
