#include "tautline/kernels/block_attention.h"

#include "kernels/block_attention_cases.h"

namespace tautline::kernels {
namespace {

using namespace testing;

using Case = BlockCase;
using Data = BlockData;

/// The largest share of the tolerance.
double compare(const Case& c, Shares& forward, Shares& backward) {
  Data want(c);
  block_attention_forward_ref(want.p);
  block_attention_backward_ref(want.p);
  double worst = 0;
  const auto add = [&](Shares& shares, double share) {
    shares.add(share);
    worst = std::max(worst, share);
  };
  for_each_isa(has_v4(), [&](const char*, bool use_v4) {
    Data got(c);
    got.run(use_v4);
    // As attention_units, with 64 keys; a rotation adds 2 units to each factor.
    const double units = 5.0 * (static_cast<double>(c.head_dim) / 4 + 4) + 64 / 4.0 + 16 + 6;
    const double grouped = units + 64 * (c.heads / c.kv_heads - 1) / 4.0;
    add(forward, share_used(got.o.values(), want.o.values(), got.p.tokens, units, 1.0));
    add(backward, share_used(got.d_q.values(), want.d_q.values(), got.p.tokens, units, 1.0));
    add(backward, share_used(got.d_k.values(), want.d_k.values(), got.p.tokens, grouped, 1.0));
    add(backward, share_used(got.d_v.values(), want.d_v.values(), got.p.tokens, grouped, 1.0));
  });
  return worst;
}

TEST(BlockAttention, BothInstructionSetsAgreeWithTheReference) {
  Shares forward("block attention forward"), backward("block attention backward");
  for (const bool causal : {false, true}) {
    for (const RopeLayout rope :
         {RopeLayout::kNone, RopeLayout::kHalfSplit, RopeLayout::kInterleaved}) {
      for (const int64_t dim : {2, 8, 18, 64, 130, 256}) {
        Case c;
        c.causal = causal, c.rope = rope, c.head_dim = dim, c.rotate_values = dim != 8;
        c.lengths = {0, 1, 63, 64, 65, 0, 85, 130, 3, 0};
        EXPECT_LT(compare(c, forward, backward), 1.0) << c;
      }
    }
    Case c;
    c.causal = causal;
    EXPECT_LT(compare(c, forward, backward), 1.0) << c;  // no sequence
    c.lengths = {70, 5, 200}, c.heads = 6, c.gap = 3, c.head_dim = 17;
    EXPECT_LT(compare(c, forward, backward), 1.0) << c;
    // Positions far from 0: v turns by thousands.
    c.lengths = {5'001}, c.heads = c.kv_heads = 1, c.head_dim = 8, c.rope = RopeLayout::kHalfSplit;
    c.rotate_values = true;
    EXPECT_LT(compare(c, forward, backward), 1.0) << c;
  }
}

TEST(BlockAttention, AnyProblemAgreesWithTheReference) {
  Shares forward("block attention forward, drawn"), backward("block attention backward, drawn");
  EXPECT_TRUE(rc::check([&] {
    const Case c = any_block_case();
    RC_LOG() << c;
    RC_ASSERT(compare(c, forward, backward) < 1.0);
  }));
}

TEST(BlockAttention, AnySplitOverTasksGivesTheSameBits) {
  Case c;
  c.lengths = {5, 140, 0, 64}, c.heads = 4, c.rope = RopeLayout::kInterleaved;
  c.rotate_values = true;
  Data whole(c), parts(c);
  whole.run(false);
  for (int64_t task = whole.p.blocks * 2; task-- > 0;) {
    v3::block_attention_forward_cpu(parts.p, task, task + 1);
    v3::block_attention_backward_cpu(parts.p, task, task + 1);
  }
  EXPECT_EQ(whole.o.data, parts.o.data);
  EXPECT_EQ(whole.d_q.data, parts.d_q.data);
  EXPECT_EQ(whole.d_k.data, parts.d_k.data);
  EXPECT_EQ(whole.d_v.data, parts.d_v.data);
}

TEST(BlockAttention, NoTokenSeesAnotherBlock) {
  Case c;
  c.lengths = {130};
  Data data(c);
  data.run(false);
  const std::vector<float> before = data.o.data;
  for (int64_t i = 0; i < 64 * c.heads * c.head_dim; ++i) data.k.data[i] += 1, data.v.data[i] += 1;
  data.run(false);
  const auto row = 64 * c.heads * c.head_dim;
  EXPECT_FALSE(std::equal(before.begin(), before.begin() + row, data.o.data.begin()));
  EXPECT_TRUE(std::equal(before.begin() + row, before.end(), data.o.data.begin() + row));
}

// The reference's gradients against finite differences of the reference.
TEST(BlockAttention, TheReferenceDifferentiatesItself) {
  for (const bool causal : {false, true}) {
    Case c;
    c.lengths = {66, 3}, c.heads = 2, c.kv_heads = 1, c.head_dim = 4, c.causal = causal;
    c.rope = RopeLayout::kInterleaved, c.rotate_values = true;
    Data data(c);
    block_attention_backward_ref(data.p);
    const auto loss = [&] {
      block_attention_forward_ref(data.p);
      double total = 0;
      for (size_t i = 0; i < data.o.data.size(); ++i)
        total += double{data.o.data[i]} * data.d_o.data[i];
      return total;
    };
    const auto check = [&](std::vector<float>& x, const std::vector<float>& gradient) {
      for (size_t i = x.size() - 40; i < x.size(); ++i) {  // the short blocks
        const float kept = x[i], step = 0x1p-6f;
        x[i] = kept + step;
        const double up = loss();
        x[i] = kept - step;
        const double down = loss();
        x[i] = kept;
        // Third derivatives (below 10 here) times step^2 / 6, and outputs rounded to FP32.
        EXPECT_NEAR(gradient[i], (up - down) / (2 * step), 1e-3) << i;
      }
    };
    check(data.q.data, data.d_q.data);
    check(data.k.data, data.d_k.data);
    check(data.v.data, data.d_v.data);
  }
}

}  // namespace
}  // namespace tautline::kernels
