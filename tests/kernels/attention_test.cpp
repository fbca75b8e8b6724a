#include "tautline/kernels/attention.h"

#include "kernels/attention_cases.h"

namespace tautline::kernels {
namespace {

using namespace testing;

struct Data : AttentionData<JaggedAttention> {
  explicit Data(const AttentionCase& c) : AttentionData(c) {
    lse.resize(p.heads * p.rows);
    p.lse = lse.data();
    p.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  }
  void run(bool use_v4) {
    const int64_t tasks = p.sequences * p.kv_heads;
    if (use_v4) {
      v4::jagged_attention_forward_cpu(p, 0, tasks);
      v4::jagged_attention_backward_cpu(p, 0, tasks);
    } else {
      v3::jagged_attention_forward_cpu(p, 0, tasks);
      v3::jagged_attention_backward_cpu(p, 0, tasks);
    }
    finish();
  }
  std::vector<float> lse;
};

/// The largest share of the tolerance.
double compare(const AttentionCase& c, Shares& forward, Shares& backward) {
  Data want(c);
  jagged_attention_forward_ref(want.p);
  jagged_attention_backward_ref(want.p);
  double worst = 0;
  const auto add = [&](Shares& shares, double share) {
    shares.add(share);
    worst = std::max(worst, share);
  };
  for_each_isa(has_v4(), [&](const char*, bool use_v4) {
    Data got(c);
    got.run(use_v4);
    const double units = attention_units(c, longest(c));
    const double grouped = attention_units(c, longest(c) * c.heads / c.kv_heads);
    add(forward, share_used(got.o.values(), want.o.values(), got.p.rows, units, 1.0));
    add(forward, share_used(got.lse, want.lse, 1, units, 1.0));
    add(backward, share_used(got.d_q.values(), want.d_q.values(), got.p.rows, units, 1.0));
    add(backward, share_used(got.d_k.values(), want.d_k.values(), got.p.k_tokens, grouped, 1.0));
    add(backward, share_used(got.d_v.values(), want.d_v.values(), got.p.k_tokens, grouped, 1.0));
    add(backward, share_used(got.d_position, want.d_position, 1, units, table_floor(c)));
    add(backward, share_used(got.d_time, want.d_time, 1, units, table_floor(c)));
  });
  return worst;
}

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> all;
  const std::vector<int64_t> mixed = {0, 1, 3, 4, 5, 0, 15, 16, 17, 31, 33, 0};
  for (const AttentionWindow window : {AttentionWindow{}, kCausal, AttentionWindow{20, 7}}) {
    const auto add = [&](std::vector<int64_t> q, std::vector<int64_t> k, int64_t heads,
                         int64_t dim) {
      AttentionCase c;
      c.q_lengths = q, c.k_lengths = k, c.heads = c.kv_heads = heads;
      c.head_dim = c.value_dim = dim, c.window = window, c.packed = q == k;
      all.push_back(c);
    };
    add({}, {}, 2, 32);
    add({0, 0}, {0, 0}, 2, 32);
    for (const int64_t dim : {1, 8, 15, 16, 17, 32, 64, 100, 256}) add(mixed, mixed, 2, dim);
    for (const int64_t n : {511, 512, 513, 1100}) add({n}, {n}, 1, 32);
    add({3, 0, 8, 2, 7}, {7, 4, 5, 0, 600}, 3, 32);
    add({600}, {10}, 1, 16);
    // All of it at once, over more than one tile of keys.
    AttentionCase c = all.back();
    c.q_lengths = {}, c.seeds = 5, c.k_lengths = {3, 0, 1030, 16}, c.heads = 6, c.kv_heads = 2;
    c.value_dim = 24, c.distances = 100, c.time_buckets = 64, c.packed = false, c.gap = 3;
    all.push_back(c);
    c.seeds = 0, c.q_lengths = {3, 1, 700, 0}, c.shared_tables = true;
    all.push_back(c);
  }
  return all;
}

TEST(JaggedAttention, BothInstructionSetsAgreeWithTheReference) {
  Shares forward("attention forward"), backward("attention backward");
  for (const AttentionCase& c : cases()) EXPECT_LT(compare(c, forward, backward), 1.0) << c;
}

TEST(JaggedAttention, AnyProblemAgreesWithTheReference) {
  Shares forward("attention forward, drawn"), backward("attention backward, drawn");
  EXPECT_TRUE(rc::check([&] {
    const AttentionCase c = any_attention_case();
    RC_LOG() << c;
    RC_ASSERT(compare(c, forward, backward) < 1.0);
  }));
}

TEST(JaggedAttention, AQueryThatSeesNothingGivesZero) {
  AttentionCase c;
  c.q_lengths = {4}, c.k_lengths = {2}, c.heads = c.kv_heads = 1, c.head_dim = c.value_dim = 8;
  c.window = kCausal;
  Data data(c);
  data.run(false);
  for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(data.o.data[i], 0.0f);
  for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(data.d_q.data[i], 0.0f);
  EXPECT_EQ(data.lse[0], -INFINITY);
  EXPECT_NE(data.o.data[16], 0.0f);
}

TEST(JaggedAttention, AnySplitOverTasksGivesTheSameBits) {
  AttentionCase c;
  c.q_lengths = c.k_lengths = {5, 40, 0, 17}, c.heads = 4, c.window = kCausal;
  c.distances = 9, c.time_buckets = 30;
  Data whole(c), parts(c);
  whole.run(false);
  for (int64_t task = 8; task-- > 0;) v3::jagged_attention_forward_cpu(parts.p, task, task + 1);
  for (int64_t task = 8; task-- > 0;) v3::jagged_attention_backward_cpu(parts.p, task, task + 1);
  for (int64_t table = 8; table-- > 0;) v3::attention_bias_finish_cpu(parts.p, table, table + 1);
  EXPECT_EQ(whole.o.data, parts.o.data);
  EXPECT_EQ(whole.d_q.data, parts.d_q.data);
  EXPECT_EQ(whole.d_k.data, parts.d_k.data);
  EXPECT_EQ(whole.d_v.data, parts.d_v.data);
  EXPECT_EQ(whole.d_position, parts.d_position);
  EXPECT_EQ(whole.d_time, parts.d_time);
}

// A window bounds the work: a million tokens, and offsets in bytes beyond 2^31.
TEST(JaggedAttention, AMillionTokensInASlidingWindow) {
  AttentionCase c;
  const int64_t n = 1'000'003;
  c.q_lengths = c.k_lengths = {n}, c.heads = c.kv_heads = 1, c.head_dim = c.value_dim = 8;
  c.window = {3, 0}, c.distances = 3;
  Data got(c);
  got.run(has_v4());
  // The last rows alone, as a sequence of their own: query n - 1 sees the last four keys.
  AttentionCase tail = c;
  tail.q_lengths = {1}, tail.k_lengths = {4};
  Data want(tail);
  for (const auto& [from, to] : {std::pair{&got.q, &want.q}, {&got.k, &want.k}, {&got.v, &want.v}})
    std::copy(from->data.end() - static_cast<int64_t>(to->data.size()), from->data.end(),
              to->data.begin());
  want.position = got.position;
  want.p.bias.position = want.position.data();
  jagged_attention_forward_ref(want.p);
  const std::vector<float> last(got.o.data.end() - 8, got.o.data.end());
  EXPECT_LT(share_used(last, want.o.data, 1, attention_units(tail, 4), 1.0), 1.0);
}

TEST(TimeBucket, TwoAnOctaveExactInIntegers) {
  std::vector<int32_t> buckets;
  for (const int64_t d : {0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 15, 16})
    buckets.push_back(time_bucket(d, 127));
  EXPECT_EQ(buckets, (std::vector<int32_t>{0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8}));
  EXPECT_EQ(time_bucket(-12, 127), 7);
  EXPECT_EQ(time_bucket(12, 5), 4);
  EXPECT_EQ(time_bucket(INT64_MAX, 127), 126);
  EXPECT_EQ(time_bucket(INT64_MIN, 127), 126);
}

// The reference's gradients against finite differences of the reference.
TEST(JaggedAttention, TheReferenceDifferentiatesItself) {
  AttentionCase c;
  c.q_lengths = {3, 2}, c.k_lengths = {4, 3}, c.heads = 2, c.kv_heads = 1, c.head_dim = 3;
  c.value_dim = 2, c.window = {2, 1}, c.distances = 3, c.time_buckets = 40, c.shared_tables = true;
  Data data(c);
  jagged_attention_forward_ref(data.p);
  jagged_attention_backward_ref(data.p);
  const auto loss = [&] {
    jagged_attention_forward_ref(data.p);
    double total = 0;
    for (size_t i = 0; i < data.o.data.size(); ++i)
      total += double{data.o.data[i]} * data.d_o.data[i];
    return total;
  };
  const auto check = [&](std::vector<float>& x, const std::vector<float>& gradient) {
    ASSERT_EQ(x.size(), gradient.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const float kept = x[i], step = 0x1p-6f;
      x[i] = kept + step;
      const double up = loss();
      x[i] = kept - step;
      const double down = loss();
      x[i] = kept;
      // Third derivatives (below 20 here) times step^2 / 6, and outputs rounded to FP32.
      EXPECT_NEAR(gradient[i], (up - down) / (2 * step), 1e-3) << i;
    }
  };
  check(data.q.data, data.d_q.data);
  check(data.k.data, data.d_k.data);
  check(data.v.data, data.d_v.data);
  check(data.position, data.d_position);
  check(data.time, data.d_time);
}

}  // namespace
}  // namespace tautline::kernels
