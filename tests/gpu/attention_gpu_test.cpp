// The portable CUDA kernels of attention and gdpa follow the double references.
#include "gpu/attention_device.h"

namespace tautline::kernels {
namespace {

using namespace testing;

void run(JaggedAttention& p) {
  jagged_attention_forward_cuda(p);
  jagged_attention_backward_cuda(p);
  attention_bias_finish_cuda(p);
  gpu::expect_success(cudaDeviceSynchronize());
}
void run(Gdpa& p) {
  gdpa_forward_cuda(p);
  gdpa_backward_cuda(p);
  attention_bias_finish_cuda(p);
  gpu::expect_success(cudaDeviceSynchronize());
}

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> all;
  for (const AttentionWindow window : {AttentionWindow{}, kCausal, AttentionWindow{20, 7}}) {
    AttentionCase c;
    c.window = window;
    all.push_back(c);  // no sequence
    for (const int64_t dim : {1, 16, 31, 32, 33, 64, 100, 128, 130, 256}) {
      c.head_dim = c.value_dim = dim;
      c.q_lengths = c.k_lengths = {0, 1, 15, 16, 17, 31, 33, 0, 63, 64, 65, 130};
      all.push_back(c);
    }
    c.head_dim = 64, c.value_dim = 96, c.heads = 6, c.distances = 40, c.time_buckets = 64,
    c.gap = 3;
    c.q_lengths = {3, 0, 80, 2, 7}, c.k_lengths = {7, 4, 5, 0, 300};
    all.push_back(c);
    c.q_lengths = {}, c.seeds = 70, c.shared_tables = true;
    all.push_back(c);
  }
  return all;
}

constexpr Element kHalves[] = {Element::kBFloat16, Element::kFloat16};

TEST(AttentionGpu, FollowsTheReference) {
  Shares shares("attention on the GPU");
  for (const Element element : kHalves)
    for (const AttentionCase& c : cases())
      expect_like_the_reference<JaggedAttention>(c, element, ScoreActivation::kIdentity, shares,
                                                 run);
}

TEST(GdpaGpu, FollowsTheReference) {
  Shares shares("gdpa on the GPU");
  for (const Element element : kHalves) {
    for (const AttentionCase& c : cases())
      expect_like_the_reference<Gdpa>(c, element, ScoreActivation::kSilu, shares, run);
    AttentionCase c;
    c.q_lengths = c.k_lengths = {5, 0, 100, 31};
    for (int f = 0; f < 8; ++f)
      expect_like_the_reference<Gdpa>(c, element, static_cast<ScoreActivation>(f), shares, run);
  }
}

TEST(AttentionGpu, AnyProblemFollowsTheReference) {
  Shares shares("attention and gdpa on the GPU, drawn");
  EXPECT_TRUE(rc::check([&] {
    const AttentionCase c = any_attention_case();
    const auto f = static_cast<ScoreActivation>(drawn(0, 7));
    expect_like_the_reference<JaggedAttention>(c, Element::kBFloat16, ScoreActivation::kIdentity,
                                               shares, run);
    expect_like_the_reference<Gdpa>(c, Element::kFloat16, f, shares, run);
    RC_ASSERT(!::testing::Test::HasFailure());  // the first failure counts, not the smallest
  }));
}

TEST(AttentionGpu, BroadcastQueriesAreSummedInOrder) {
  const std::vector<float> partial = normals(5 * 700, 1);
  std::vector<float> want(700);
  v3::broadcast_query_finish_cpu(partial.data(), 5, 700, want.data(), 0, 700);
  const DeviceArray<float> in(partial), out(700);
  broadcast_query_finish_cuda(in.data(), 5, 700, out.data(), nullptr);
  gpu::expect_success(cudaDeviceSynchronize());
  EXPECT_EQ(out.host(), want);
}

}  // namespace
}  // namespace tautline::kernels
