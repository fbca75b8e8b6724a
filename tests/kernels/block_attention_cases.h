// Problems of block attention: tensors for a shape, drawn or named.
#pragma once

#include <vector>

#include "tautline/kernels/block_attention.h"

#include "kernels/attention_cases.h"

namespace tautline::kernels::testing {

struct BlockCase {
  std::vector<int64_t> lengths;
  int64_t heads = 2, kv_heads = 2, head_dim = 32, gap = 0;
  bool causal = false, rotate_values = false;
  RopeLayout rope = RopeLayout::kNone;
};

inline std::ostream& operator<<(std::ostream& out, const BlockCase& c) {
  for (const int64_t n : c.lengths) out << n << " ";
  return out << "heads " << c.heads << "/" << c.kv_heads << " dim " << c.head_dim << " gap "
             << c.gap << " causal " << c.causal << " rope " << int(c.rope) << " of v "
             << c.rotate_values;
}

struct BlockData {
  explicit BlockData(const BlockCase& c) : offsets(offsets_of(c.lengths)) {
    std::vector<int64_t> blocks;
    for (const int64_t n : c.lengths) blocks.push_back((n + 63) / 64);
    block_offsets = offsets_of(blocks);
    p.offsets = offsets.data();
    p.block_offsets = block_offsets.data();
    p.sequences = static_cast<int64_t>(c.lengths.size());
    p.heads = c.heads;
    p.kv_heads = c.kv_heads;
    p.head_dim = c.head_dim;
    p.tokens = offsets.back();
    p.blocks = block_offsets.back();
    p.causal = c.causal;
    p.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
    p.rope = c.rope;
    p.rotate_values = c.rotate_values;
    const auto fill = [&](HeadsTensor& x, int64_t heads, uint64_t seed) {
      x.fill(p.tokens, heads, c.head_dim, c.gap, seed);
      return x.view;
    };
    p.q = fill(q, c.heads, 1), p.k = fill(k, c.kv_heads, 2), p.v = fill(v, c.kv_heads, 3);
    p.o = fill(o, c.heads, 0), p.d_o = fill(d_o, c.heads, 4), p.d_q = fill(d_q, c.heads, 0);
    p.d_k = fill(d_k, c.kv_heads, 0), p.d_v = fill(d_v, c.kv_heads, 0);
  }
  BlockData(const BlockData&) = delete;
  void run(bool use_v4) {
    const int64_t tasks = p.blocks * p.kv_heads;
    if (use_v4) {
      v4::block_attention_forward_cpu(p, 0, tasks);
      v4::block_attention_backward_cpu(p, 0, tasks);
    } else {
      v3::block_attention_forward_cpu(p, 0, tasks);
      v3::block_attention_backward_cpu(p, 0, tasks);
    }
  }
  std::vector<int64_t> offsets, block_offsets;
  HeadsTensor q, k, v, o, d_o, d_q, d_k, d_v;
  BlockAttention p;
};

inline BlockCase any_block_case() {
  const auto in = drawn;
  BlockCase c;
  for (int64_t b = in(0, 4); b-- > 0;) c.lengths.push_back(in(0, 3) == 0 ? 0 : in(0, 140));
  c.kv_heads = in(1, 2);
  c.heads = c.kv_heads * in(1, 3);
  c.rope = static_cast<RopeLayout>(in(0, 2));
  c.head_dim = c.rope == RopeLayout::kNone ? in(1, 40) : 2 * in(1, 20);
  c.causal = in(0, 1) != 0;
  c.rotate_values = in(0, 1) != 0;
  c.gap = in(0, 1) ? in(1, 5) : 0;
  return c;
}

}  // namespace tautline::kernels::testing
