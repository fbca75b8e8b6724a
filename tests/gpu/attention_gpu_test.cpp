// The portable CUDA kernels of attention and gdpa against the double references, on inputs rounded
// to the element type first. A result may differ by three roundings to that type (of a weight
// or d_score before the second product, its own) of terms of about the row's size or 1, in the
// backward by the E independent ones of o inside d_o . o, and by the bound of FP32 sums
// (kernels/attention_cases.h).
#include "gpu/attention_device.h"

namespace tautline::kernels {
namespace {

using namespace testing;

template <class P>
void expect_like_the_reference(AttentionCase c, Element element, ScoreActivation activation,
                               Shares& shares) {
  c.packed = false;  // the host's packed projection has no twin here
  AttentionData<P> host(c);
  std::vector<float> lse(host.p.heads * host.p.rows);
  const double scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  if constexpr (std::is_same_v<P, JaggedAttention>) {
    host.p.lse = lse.data();
    host.p.scale = scale;
  } else {
    host.p.activation = activation;
    host.p.alpha = scale;
    host.p.beta = 0.25;
  }
  DeviceCase<P> device(host, c, element);  // rounds the host's inputs
  if constexpr (std::is_same_v<P, JaggedAttention>) {
    jagged_attention_forward_ref(host.p);
    jagged_attention_backward_ref(host.p);
  } else {
    gdpa_forward_ref(host.p);
    gdpa_backward_ref(host.p);
  }
  device.run();
  const auto got = device.results();
  device.run();
  EXPECT_EQ(got, device.results()) << "another run, other bits: " << c;
  const double slope = activation == ScoreActivation::kSquaredRelu ? 10.0 : 1.0;
  const double step = half_ulp(element) / 0x1p-24, exact = attention_units(c, longest(c));
  const double grouped = attention_units(c, longest(c) * c.heads / c.kv_heads);
  const double backward = (3 + std::sqrt(static_cast<double>(c.value_dim))) * step;
  const std::pair<const std::vector<float>, double> wants[] = {
      {host.o.values(), slope * (3 * step + exact)},
      {host.d_q.values(), slope * (backward + exact)},
      {host.d_k.values(), slope * (backward + grouped)},
      {host.d_v.values(), slope * (backward + grouped)},
      {host.d_position, slope * (backward + exact)},
      {host.d_time, slope * (backward + exact)}};
  const int64_t rows[] = {host.p.rows, host.p.rows, host.p.k_tokens, host.p.k_tokens, 1, 1};
  for (int i = 0; i < 6; ++i) {
    const double share =
        share_used(got[i], wants[i].first, rows[i], wants[i].second, i < 4 ? 1.0 : table_floor(c));
    shares.add(share);
    EXPECT_LT(share, 1.0) << "result " << i << " of " << name_of(element) << ", f "
                          << static_cast<int>(activation) << ", " << c;
  }
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
      expect_like_the_reference<JaggedAttention>(c, element, ScoreActivation::kIdentity, shares);
}

TEST(GdpaGpu, FollowsTheReference) {
  Shares shares("gdpa on the GPU");
  for (const Element element : kHalves) {
    for (const AttentionCase& c : cases())
      expect_like_the_reference<Gdpa>(c, element, ScoreActivation::kSilu, shares);
    AttentionCase c;
    c.q_lengths = c.k_lengths = {5, 0, 100, 31};
    for (int f = 0; f < 8; ++f)
      expect_like_the_reference<Gdpa>(c, element, static_cast<ScoreActivation>(f), shares);
  }
}

TEST(AttentionGpu, AnyProblemFollowsTheReference) {
  Shares shares("attention and gdpa on the GPU, drawn");
  EXPECT_TRUE(rc::check([&] {
    const AttentionCase c = any_attention_case();
    const auto f = static_cast<ScoreActivation>(drawn(0, 7));
    expect_like_the_reference<JaggedAttention>(c, Element::kBFloat16, ScoreActivation::kIdentity,
                                               shares);
    expect_like_the_reference<Gdpa>(c, Element::kFloat16, f, shares);
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
