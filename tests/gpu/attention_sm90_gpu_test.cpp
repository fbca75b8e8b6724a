// The Hopper kernels of attention and gdpa follow the double references too, on what they take.
#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "tautline/kernels/attention_sm90/backward.h"
#include "tautline/kernels/attention_sm90/forward.h"

#include "gpu/attention_device.h"

namespace tautline::kernels {
namespace {

using namespace testing;

bool is_hopper() {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  return major == 9 && minor == 0;
}

/// An order on the device.
struct DeviceOrder {
  DeviceOrder(const AttentionOrderRequest& request, int64_t rows)
      : capacity(attention_order_capacity(request, rows)),
        tiles(2 * capacity),
        count(2),
        workspace(attention_order_workspace(request.sequences, capacity)) {
    AttentionOrderBuild build{request};
    build.capacity = capacity;
    build.tiles = tiles.data();
    build.count = count.data();
    build.workspace = workspace.data();
    attention_order_cuda(build);
  }
  AttentionOrder order() const { return {tiles.data(), count.data()}; }
  int64_t capacity;
  DeviceArray<int32_t> tiles, count, workspace;
};

/// kWhole: of the order, so that most sequences are one item or most are in turns.
/// kCtas: few, so that one has many sequences.
template <int32_t kWhole, int32_t kCtas = 132>
void run_backward(AttentionProblem& p, AttentionSm90Backward b) {
  b.q = p.q, b.k = p.k, b.v = p.v, b.d_o = p.d_o, b.d_q = p.d_q, b.d_k = p.d_k, b.d_v = p.d_v;
  b.q_offsets = p.q_offsets, b.k_offsets = p.k_offsets;
  b.sequences = p.sequences, b.rows = p.rows, b.k_tokens = p.k_tokens;
  b.max_q = p.max_q, b.max_k = p.max_k;
  b.heads = static_cast<int32_t>(p.heads), b.kv_heads = static_cast<int32_t>(p.kv_heads);
  b.head_dim = static_cast<int32_t>(p.head_dim), b.value_dim = static_cast<int32_t>(p.value_dim);
  b.whole = kWhole;
  b.ctas = kCtas;
  b.window = p.window;
  b.element = p.element;
  AttentionOrderRequest request;
  request.q_offsets = p.q_offsets, request.k_offsets = p.k_offsets;
  request.sequences = p.sequences;
  request.seeds = p.q_offsets ? 0 : p.max_q;
  request.window = p.window;
  request.pass = AttentionPass::kKeys;
  request.whole = b.whole;
  request.group = p.heads / p.kv_heads;
  const DeviceOrder order(request, p.k_tokens);
  b.tiles = order.tiles.data();
  b.count = order.count.data();
  const DeviceArray<uint8_t> workspace(attention_backward_sm90_workspace(b));
  b.workspace = workspace.data();
  p.query_parts = attention_backward_sm90_query_gradients(b);
  attention_backward_sm90(b);
  gpu::expect_success(cudaDeviceSynchronize());
}

template <int32_t kWhole, int32_t kCtas = 132>
void run(JaggedAttention& p) {
  EXPECT_EQ(attention_forward_sm90_refuses(p, p.scale), nullptr);
  const DeviceOrder order(attention_forward_sm90_order(p), p.rows);
  jagged_attention_forward_sm90(p, order.order());
  gpu::expect_success(cudaDeviceSynchronize());
  AttentionSm90Backward b;
  b.o = p.o;
  b.lse = p.lse;
  b.scale = static_cast<float>(p.scale);
  run_backward<kWhole, kCtas>(p, b);
}
template <bool kFast, int32_t kWhole, int32_t kCtas = 132>
void run_gdpa(Gdpa& p) {
  EXPECT_EQ(attention_forward_sm90_refuses(p, 1), nullptr);
  const DeviceOrder order(attention_forward_sm90_order(p), p.rows);
  gdpa_forward_sm90(p, order.order(), kFast);
  gpu::expect_success(cudaDeviceSynchronize());
  AttentionSm90Backward b;
  b.softmax = false;
  b.activation = p.activation;
  b.fast = kFast;
  b.scale = static_cast<float>(p.alpha);
  b.beta = static_cast<float>(p.beta);
  run_backward<kWhole, kCtas>(p, b);
}

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> all;
  for (const int64_t dim : {64, 128})
    for (const AttentionWindow window :
         {AttentionWindow{}, kCausal, AttentionWindow{63, 63}, AttentionWindow{100, 0}}) {
      AttentionCase c;
      c.window = window, c.head_dim = c.value_dim = dim;
      c.heads = c.kv_heads = 1;
      c.q_lengths = c.k_lengths = {0, 1, 63, 64, 65, 0, 127, 128, 129, 192, 257, 300, 0};
      all.push_back(c);
      c.heads = 6, c.kv_heads = 2, c.gap = 8;
      c.q_lengths = {3, 0, 80, 2, 150, 64}, c.k_lengths = {7, 4, 5, 0, 200, 130};
      all.push_back(c);
      c.q_lengths = {}, c.seeds = 70;
      all.push_back(c);
    }
  for (const AttentionWindow window : {AttentionWindow{}, kCausal}) {
    AttentionCase c;  // more than one item of the backward
    c.window = window, c.head_dim = c.value_dim = 64;
    c.heads = c.kv_heads = 1;
    c.q_lengths = c.k_lengths = {1025};
    all.push_back(c);
  }
  AttentionCase far;  // whose blocks do not walk upwards any more
  far.window = kCausal, far.head_dim = far.value_dim = 64;
  far.heads = far.kv_heads = 1;
  far.q_lengths = far.k_lengths = {2060};
  all.push_back(far);
  for (const auto& [keys, values] : {std::pair{8, 64},
                                     {40, 24},
                                     {72, 128},
                                     {96, 96},
                                     {128, 80},
                                     {64, 128},
                                     {128, 64},
                                     {16, 72}}) {
    AttentionCase c;  // narrower than the kernels' columns
    c.head_dim = keys, c.value_dim = values;
    c.heads = 4, c.kv_heads = 2;
    c.q_lengths = {3, 0, 80, 2, 150, 64}, c.k_lengths = {7, 4, 5, 0, 200, 130};
    all.push_back(c);
    c.q_lengths = {}, c.seeds = 5;
    all.push_back(c);
    c.kv_heads = 4;
    all.push_back(c);
  }
  for (const auto& [keys, values] : {std::pair{64, 128}, {128, 64}})  // several passes and stages
    for (const AttentionWindow window : {kCausal, AttentionWindow{63, 63}}) {
      AttentionCase c;
      c.window = window, c.head_dim = keys, c.value_dim = values;
      c.heads = 2, c.kv_heads = 1;
      c.q_lengths = c.k_lengths = {500, 1, 0, 193, 450};
      all.push_back(c);
    }
  return all;
}

/// At most 64 queries, which have a kernel of their own; more sequences than it adds up in products.
std::vector<AttentionCase> few_queries() {
  std::vector<AttentionCase> all;
  for (const int64_t dim : {64, 128})
    for (const AttentionWindow window :
         {AttentionWindow{}, kCausal, AttentionWindow{63, 63}, AttentionWindow{100, 0}})
      for (const int64_t seeds : {0, 5, 64}) {
        AttentionCase c;
        c.window = window, c.head_dim = c.value_dim = dim;
        c.heads = c.kv_heads = 3, c.gap = 8;
        c.k_lengths = {7,  4,  500, 0,  200, 130, 64, 65, 1,  30,
                       17, 90, 16,  33, 48,  129, 12, 3,  70, 62};
        c.seeds = seeds;
        if (seeds == 0)
          c.q_lengths = {3, 0, 64, 2, 50, 64, 33, 1, 64, 30, 17, 9, 16, 33, 48, 12, 12, 3, 7, 62};
        all.push_back(c);
        c.heads = c.kv_heads = 6;  // more than four thread blocks
        if (window.right < 0) all.push_back(c);
      }
  return all;
}

TEST(AttentionSm90, FollowsTheReference) {
  if (!is_hopper()) GTEST_SKIP() << "not a Hopper card";
  Shares shares("attention on Hopper");
  for (const Element element : {Element::kBFloat16, Element::kFloat16})
    for (const AttentionCase& c : cases())
      for (const auto& go : {run<1024>, run<128>})
        expect_like_the_reference<JaggedAttention>(c, element, ScoreActivation::kIdentity, shares,
                                                   go);
}

TEST(AttentionSm90, FewQueriesFollowTheReference) {
  if (!is_hopper()) GTEST_SKIP() << "not a Hopper card";
  Shares shares("few queries on Hopper");
  for (const AttentionCase& c : few_queries()) {
    for (const Element element : {Element::kBFloat16, Element::kFloat16})
      for (const auto& go : {run<1024>, run<256, 2>})
        expect_like_the_reference<JaggedAttention>(c, element, ScoreActivation::kIdentity, shares,
                                                   go);
    for (const auto f : {ScoreActivation::kSilu, ScoreActivation::kGeluTanh})
      for (const auto& go : {run_gdpa<true, 1024>, run_gdpa<true, 256, 2>})
        expect_like_the_reference<Gdpa>(c, Element::kBFloat16, f, shares, go);
  }
}

TEST(GdpaSm90, FollowsTheReference) {
  if (!is_hopper()) GTEST_SKIP() << "not a Hopper card";
  Shares shares("gdpa on Hopper");
  for (const Element element : {Element::kBFloat16, Element::kFloat16}) {
    for (const AttentionCase& c : cases())
      for (const auto& go : {run_gdpa<false, 1024>, run_gdpa<false, 128>})
        expect_like_the_reference<Gdpa>(c, element, ScoreActivation::kSilu, shares, go);
    AttentionCase c;
    c.head_dim = c.value_dim = 64;
    c.q_lengths = c.k_lengths = {5, 0, 100, 31, 200};
    for (int f = 0; f < 8; ++f)
      expect_like_the_reference<Gdpa>(c, element, static_cast<ScoreActivation>(f), shares,
                                      run_gdpa<false, 1024>);
    for (const auto& [keys, values] : {std::pair{64, 64}, {128, 128}, {64, 128}, {128, 40}}) {
      c.head_dim = keys, c.value_dim = values;
      for (const auto f : {ScoreActivation::kSilu, ScoreActivation::kGeluTanh})
        for (const auto& go : {run_gdpa<true, 1024>, run_gdpa<true, 128>})
          expect_like_the_reference<Gdpa>(c, element, f, shares, go);
    }
  }
}

/// What the Hopper kernels take of any problem.
AttentionCase any_case() {
  AttentionCase c = any_attention_case();
  c.distances = c.time_buckets = 0;
  c.head_dim = 8 * drawn(1, 16);
  c.value_dim = drawn(0, 1) ? c.head_dim : 8 * drawn(1, 16);
  c.gap = 8 * (c.gap / 2);
  for (int64_t& n : c.q_lengths) n *= 5;
  for (int64_t& n : c.k_lengths) n *= 5;
  return c;
}

TEST(AttentionSm90, AnyProblemFollowsTheReference) {
  if (!is_hopper()) GTEST_SKIP() << "not a Hopper card";
  Shares shares("attention and gdpa on Hopper, drawn");
  EXPECT_TRUE(rc::check([&] {
    const AttentionCase c = any_case();
    const auto f = static_cast<ScoreActivation>(drawn(0, 7));
    expect_like_the_reference<JaggedAttention>(c, Element::kBFloat16, ScoreActivation::kIdentity,
                                               shares, drawn(0, 1) ? run<1024> : run<128>);
    expect_like_the_reference<Gdpa>(c, Element::kFloat16, f, shares,
                                    drawn(0, 1) ? run_gdpa<false, 1024> : run_gdpa<false, 128>);
    RC_ASSERT(!::testing::Test::HasFailure());  // the first failure counts, not the smallest
  }));
}

/// Lengths as in a training batch: most of them short, a few very long.
std::vector<int64_t> many_lengths(int64_t count) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  std::vector<int64_t> lengths(count);
  for (int64_t& n : lengths)
    n = std::clamp<int64_t>(std::llround(190 * std::exp(0.9 * normal(random))), 0, 2600);
  lengths[count / 2] = 2600;
  return lengths;
}

/// What races would show in is many sequences at once, on every multiprocessor: here nothing is
/// compared with the reference, but with other runs, and with another share-out of the work.
template <class P>
void expect_the_same_bits(AttentionCase c, Run<P> run, Run<P> other) {
  AttentionData<P> host(c);
  if constexpr (std::is_same_v<P, JaggedAttention>)
    host.p.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  else
    host.p.activation = ScoreActivation::kSilu, host.p.beta = 0.25,
    host.p.alpha = 1 / std::sqrt(static_cast<double>(c.head_dim));
  DeviceCase<P> device(host, c, Element::kBFloat16);
  const DeviceHeads* gradients[] = {&device.d_q, &device.d_k, &device.d_v};
  run(device.p);
  const auto bits = [&] {
    return std::vector{device.o.raw(), device.d_q.raw(), device.d_k.raw(), device.d_v.raw()};
  };
  const auto first = bits();
  std::vector<std::vector<float>> values;
  for (const DeviceHeads* x : gradients) values.push_back(x->values());
  for (int again = 0; again < 5; ++again) {
    run(device.p);
    ASSERT_TRUE(bits() == first) << "run " << again << ", other bits; " << c;
  }
  other(device.p);
  const double step = half_ulp(Element::kBFloat16) / 0x1p-24,
               exact = attention_units(c, longest(c));
  for (int i = 0; i < 3; ++i)  // of each run, two roundings that the other may make another way
    EXPECT_LT(share_used(values[i], gradients[i]->values(), i == 0 ? host.p.rows : host.p.k_tokens,
                         4 * step + exact, 1.0),
              1.0)
        << "gradient " << i << ", " << c;
}

TEST(AttentionSm90, ManySequencesGiveTheSameBits) {
  if (!is_hopper()) GTEST_SKIP() << "not a Hopper card";
  for (const auto& [keys, values] : {std::pair{64, 64}, {128, 128}, {64, 128}, {128, 64}})
    for (const AttentionWindow window : {AttentionWindow{}, kCausal, AttentionWindow{300, 50}}) {
      AttentionCase c;
      c.window = window, c.head_dim = keys, c.value_dim = values;
      c.heads = 2, c.kv_heads = window.left < 0 ? 2 : 1;
      c.q_lengths = c.k_lengths = many_lengths(100);
      expect_the_same_bits<JaggedAttention>(c, run<256>, run<1024>);
      if (window.right == 0)
        expect_the_same_bits<Gdpa>(c, run_gdpa<true, 256>, run_gdpa<true, 1024>);
      AttentionCase few = c;  // queries, of more sequences and heads than there are thread blocks
      few.kv_heads = 2, few.gap = 8;
      few.k_lengths = many_lengths(300);
      few.q_lengths = few.k_lengths;
      for (int64_t& n : few.q_lengths) n %= 65;
      expect_the_same_bits<JaggedAttention>(few, run<256>, run<256, 50>);
      few.q_lengths = {}, few.seeds = 40;
      expect_the_same_bits<Gdpa>(few, run_gdpa<true, 256>, run_gdpa<true, 1024>);
    }
}

}  // namespace
}  // namespace tautline::kernels
