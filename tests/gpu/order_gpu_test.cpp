// The order of attention's tiles made on the GPU is the one made on the host, item for item.
#include "gpu/device.h"
#include "kernels/order_cases.h"

namespace tautline::kernels {
namespace {

using namespace testing;
using gpu::DeviceArray;

void expect_the_hosts_order(const OrderCase& c) {
  const DeviceArray<int64_t> q(c.q_offsets), k(c.k_offsets);
  AttentionOrderBuild p{c.request};
  if (p.q_offsets) p.q_offsets = q.data();
  p.k_offsets = k.data();
  p.capacity = attention_order_capacity(c.request, c.rows());
  const DeviceArray<int32_t> tiles(2 * p.capacity), count(2),
      workspace(attention_order_workspace(p.sequences, p.capacity));
  p.tiles = tiles.data();
  p.count = count.data();
  p.workspace = workspace.data();
  attention_order_cuda(p);
  gpu::expect_success(cudaDeviceSynchronize());
  const std::vector<AttentionItem> want = attention_order(c.request);
  ASSERT_EQ(count.host()[0], static_cast<int32_t>(want.size()));
  EXPECT_EQ(count.host()[1], made_for(c.request));
  const std::vector<int32_t> got = tiles.host();
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_TRUE(got[2 * i] == want[i].sequence && got[2 * i + 1] == want[i].tile)
        << "item " << i << " of " << want.size() << ": " << got[2 * i] << "/" << got[2 * i + 1]
        << ", want " << want[i].sequence << "/" << want[i].tile << " of work " << want[i].work;
}

TEST(AttentionOrderGpu, IsTheHostsOnAnyBatch) {
  EXPECT_TRUE(rc::check([] {
    expect_the_hosts_order(*any_order_case(drawn(0, 1) ? 6 : 3000, 60));
    RC_ASSERT(!::testing::Test::HasFailure());  // the first failure counts, not the smallest
  }));
}

TEST(AttentionOrderGpu, IsTheHostsOnTheBenchmarksBatches) {
  for (const OrderBatch& batch : benchmark_batches())
    for (const AttentionPass pass : {AttentionPass::kQueries, AttentionPass::kKeys})
      for (const int64_t whole : {0, 512}) {
        OrderCase c(offsets_of(batch.lengths), offsets_of(batch.lengths));
        c.request.window = batch.window;
        c.request.pass = pass;
        c.request.whole = whole;
        c.request.tile = 64;
        expect_the_hosts_order(c);
      }
}

TEST(AttentionOrderGpu, AMillionTokensAndManySequences) {
  const std::vector<int64_t> lengths[] = {{0, 1'000'000, 3}, std::vector<int64_t>(100'000, 70)};
  for (const std::vector<int64_t>& n : lengths)
    for (const AttentionPass pass : {AttentionPass::kQueries, AttentionPass::kKeys})
      for (const AttentionWindow window : {kCausal, AttentionWindow{100, 300'000}}) {
        OrderCase c(offsets_of(n), offsets_of(n));
        c.request.window = window;
        c.request.pass = pass;
        c.request.tile = c.request.other_tile = 64;
        c.request.group = 5;  // work beyond what the sort tells apart
        expect_the_hosts_order(c);
      }
}

}  // namespace
}  // namespace tautline::kernels
