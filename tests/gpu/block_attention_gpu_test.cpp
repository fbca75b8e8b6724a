// The portable CUDA kernel of block attention against the double reference, on inputs rounded to the
// element type first. Beside attention_gpu_test.cpp's roundings: turned values are rounded (a
// score's error is then about a half step's random walk over D terms, up to five deviations of it),
// and gradients once more before they are turned back.
#include "gpu/attention_device.h"
#include "kernels/block_attention_cases.h"

namespace tautline::kernels {
namespace {

using namespace testing;

void expect_like_the_reference(const BlockCase& c, Element element, Shares& shares) {
  BlockData host(c);
  const DeviceHeads q(element, host.q), k(element, host.k), v(element, host.v);
  const DeviceHeads o(element, host.o), d_o(element, host.d_o), d_q(element, host.d_q),
      d_k(element, host.d_k), d_v(element, host.d_v);
  block_attention_forward_ref(host.p);
  block_attention_backward_ref(host.p);
  const DeviceArray<int64_t> offsets(host.offsets);
  BlockAttention p = host.p;
  p.element = element;
  p.q = q.view(), p.k = k.view(), p.v = v.view(), p.o = o.view(), p.d_o = d_o.view();
  p.d_q = d_q.view(), p.d_k = d_k.view(), p.d_v = d_v.view();
  p.offsets = offsets.data();
  p.block_offsets = nullptr;
  p.blocks = p.tokens / kAttentionBlock + p.sequences;
  const DeviceArray<uint8_t> workspace(block_attention_workspace_cuda(p, true));
  const auto run = [&] {
    block_attention_forward_cuda(p, workspace.data());
    block_attention_backward_cuda(p, workspace.data());
    gpu::expect_success(cudaDeviceSynchronize());
    return std::vector{o.values(), d_q.values(), d_k.values(), d_v.values()};
  };
  const auto got = run();
  EXPECT_EQ(got, run()) << "another run, other bits: " << c;
  const double step = half_ulp(element) / 0x1p-24, turned = c.rope == RopeLayout::kNone ? 0 : 8;
  const double exact = 5.0 * (static_cast<double>(c.head_dim) / 4 + 4) + 64 / 4.0 + 22;
  const double backward = (3 + turned + std::sqrt(static_cast<double>(c.head_dim))) * step + exact +
                          64 * (c.heads / c.kv_heads - 1) / 4.0;
  const std::pair<std::vector<float>, double> wants[] = {
      {host.o.values(), (3 + turned) * step + exact},
      {host.d_q.values(), backward},
      {host.d_k.values(), backward},
      {host.d_v.values(), backward}};
  for (int i = 0; i < 4; ++i) {
    const double share = share_used(got[i], wants[i].first, p.tokens, wants[i].second, 1.0);
    shares.add(share);
    EXPECT_LT(share, 1.0) << "result " << i << " of " << name_of(element) << ", " << c;
  }
}

TEST(BlockAttentionGpu, FollowsTheReference) {
  Shares shares("block attention on the GPU");
  for (const Element element : {Element::kBFloat16, Element::kFloat16})
    for (const bool causal : {false, true})
      for (const RopeLayout rope :
           {RopeLayout::kNone, RopeLayout::kHalfSplit, RopeLayout::kInterleaved}) {
        BlockCase c;
        c.causal = causal, c.rope = rope;
        expect_like_the_reference(c, element, shares);  // no sequence
        for (const int64_t dim : {2, 18, 64, 128, 130, 256}) {
          c.head_dim = dim, c.rotate_values = dim != 64;
          c.lengths = {0, 1, 63, 64, 65, 0, 85, 130, 3, 0};
          expect_like_the_reference(c, element, shares);
        }
        // Every fused kernel, around its tiles of 16 rows too.
        for (const int64_t dim : {64, 128})
          for (const bool rotate_values : {false, true}) {
            c.head_dim = dim, c.rotate_values = rotate_values;
            c.lengths = {0, 1, 15, 16, 17, 33, 48, 63, 64, 65, 0, 100, 128, 200, 7};
            expect_like_the_reference(c, element, shares);
          }
        c.lengths = {70, 5, 200, 3000}, c.heads = 6, c.gap = 3, c.head_dim = 32;
        expect_like_the_reference(c, element, shares);
      }
}

TEST(BlockAttentionGpu, AnyProblemFollowsTheReference) {
  Shares shares("block attention on the GPU, drawn");
  EXPECT_TRUE(rc::check([&] {
    expect_like_the_reference(any_block_case(), Element::kBFloat16, shares);
    RC_ASSERT(!::testing::Test::HasFailure());  // the first failure counts, not the smallest
  }));
}

}  // namespace
}  // namespace tautline::kernels
