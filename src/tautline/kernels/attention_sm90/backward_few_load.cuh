// Single threads of backward_few.cuh: one loads queries and d_o, one keys and values.
#pragma once

#include "tautline/kernels/attention_sm90/backward_few_config.cuh"

namespace tautline::kernels::sm90 {

/// Calls act(item, sequence, head) for what is dealt to this CTA.
template <class C, class Act>
__device__ __forceinline__ void for_each_item(const BackwardArguments& p, const Act& act) {
  const int pairs = *p.count;
  for_each_head(p, [&](int head, int rank, int ranks) {
    for_each_pair(pairs, rank, ranks, [&](int pair) {
      const int sequence = p.tiles[2 * pair];
      typename C::Item x;
      x.q_start = p.seeds ? int64_t{sequence} * p.seeds : p.q_offsets[sequence];
      x.nq = p.seeds ? p.seeds : static_cast<int>(p.q_offsets[sequence + 1] - x.q_start);
      x.k_start = static_cast<int>(p.k_offsets[sequence]);
      x.nk = static_cast<int>(p.k_offsets[sequence + 1]) - x.k_start;
      act(x, sequence, head);
    });
  });
}

template <class C>
__device__ __forceinline__ void load_queries(typename C::Shared& s, const BackwardArguments& p,
                                             const BackwardMaps& maps) {
  uint32_t phase = 1;
  for_each_item<C>(p, [&](const typename C::Item& x, int sequence, int head) {
    const void* terms = static_cast<const typename C::E*>(p.terms) +
                        ((x.q_start / C::kM + sequence) * p.heads + head) * C::kM * kRowTerms;
    EmptyBarrier::wait(&s.empty_q, phase);
    phase ^= 1;
    s.item = x;
    FullBarrier::arrive_and_expect_tx(&s.full_q, 2 * C::kM * C::kD * 2 + C::kTermBytes);
    load_boxes<C::kM, C::kM, C::kD>(maps.q, &s.full_q, s.q, p.head_dim,
                                    p.seeds ? 0 : static_cast<int>(x.q_start), x.nq, head);
    if constexpr (C::Scores::kRows)
      SM90_BULK_COPY_G2S::copy(x.nq > 0 ? terms : hopper::nothing, &s.full_q, s.terms,
                               C::kTermBytes);
    load_boxes<C::kM, C::kM, C::kD>(maps.d_o, &s.full_q, s.d_o, p.value_dim,
                                    static_cast<int>(x.q_start), x.nq, head);
  });
}

/// Keys and values that no query sees are not asked for.
template <class C>
__device__ __forceinline__ void load_keys(typename C::Shared& s, const BackwardArguments& p,
                                          const BackwardMaps& maps) {
  Ring<C::kStages> at(1);
  for_each_item<C>(p, [&](const typename C::Item& x, int, int head) {
    for (int n0 = 0; n0 < x.nk; n0 += C::kN, at.advance()) {
      const bool seen = is_seen<C>(p, x.nq, x.nk, n0);
      const auto load = [&](const CUtensorMap& map, uint64_t* full, uint64_t* empty,
                            typename C::E* to, int width) {
        EmptyBarrier::wait(empty + at.stage, at.phase);
        if (seen)
          load_rows<C::kN, C::kN, C::kD>(map, full + at.stage, to + at.stage * C::kN * C::kD, width,
                                         x.k_start + n0, x.nk - n0, head);
        else
          EmptyBarrier::arrive(full + at.stage);
      };
      load(maps.k, s.full_k, s.empty_k, s.k, p.head_dim);
      load(maps.v, s.full_v, s.empty_v, s.v, p.value_dim);
    }
  });
}

}  // namespace tautline::kernels::sm90
