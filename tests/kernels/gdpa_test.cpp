#include "tautline/kernels/gdpa.h"

#include "kernels/attention_cases.h"

namespace tautline::kernels {
namespace {

using namespace testing;

constexpr ScoreActivation kActivations[] = {
    ScoreActivation::kIdentity,  ScoreActivation::kRelu,     ScoreActivation::kSquaredRelu,
    ScoreActivation::kSilu,      ScoreActivation::kGelu,     ScoreActivation::kGeluTanh,
    ScoreActivation::kLeakyRelu, ScoreActivation::kHardSwish};

struct Data : AttentionData<Gdpa> {
  Data(const AttentionCase& c, ScoreActivation activation) : AttentionData(c) {
    p.activation = activation;
    p.alpha = 1 / std::sqrt(static_cast<double>(c.head_dim));
    p.beta = 0.25;
  }
  void run(bool use_v4) {
    const int64_t tasks = p.sequences * p.kv_heads;
    if (use_v4) {
      v4::gdpa_forward_cpu(p, 0, tasks);
      v4::gdpa_backward_cpu(p, 0, tasks);
    } else {
      v3::gdpa_forward_cpu(p, 0, tasks);
      v3::gdpa_backward_cpu(p, 0, tasks);
    }
    finish();
  }
};

/// The largest share of the tolerance.
/// The slope of ReLU, leaky ReLU and hard swish jumps: where FP32 and double see a score on two
/// sides of a corner, gradients differ by one pair's d_score. With scores of standard deviation 1
/// and errors of 1e-6, one pair in a million does; the data are seeded and none of these is it.
double compare(const AttentionCase& c, ScoreActivation activation, Shares& forward,
               Shares& backward) {
  Data want(c, activation);
  gdpa_forward_ref(want.p);
  gdpa_backward_ref(want.p);
  double worst = 0;
  const auto add = [&](Shares& shares, double share) {
    shares.add(share);
    worst = std::max(worst, share);
  };
  for_each_isa(has_v4(), [&](const char*, bool use_v4) {
    Data got(c, activation);
    got.run(use_v4);
    // Squared ReLU has the largest slope: 2 s, s up to 5.
    const double slope = activation == ScoreActivation::kSquaredRelu ? 10.0 : 1.0;
    const double units = slope * attention_units(c, longest(c));
    const double grouped = slope * attention_units(c, longest(c) * c.heads / c.kv_heads);
    add(forward, share_used(got.o.values(), want.o.values(), got.p.rows, units, 1.0));
    add(backward, share_used(got.d_q.values(), want.d_q.values(), got.p.rows, units, 1.0));
    add(backward, share_used(got.d_k.values(), want.d_k.values(), got.p.k_tokens, grouped, 1.0));
    add(backward, share_used(got.d_v.values(), want.d_v.values(), got.p.k_tokens, grouped, 1.0));
    add(backward, share_used(got.d_position, want.d_position, 1, units, table_floor(c)));
    add(backward, share_used(got.d_time, want.d_time, 1, units, table_floor(c)));
  });
  return worst;
}

TEST(Gdpa, BothInstructionSetsAgreeWithTheReference) {
  Shares forward("gdpa forward"), backward("gdpa backward");
  const auto expect_close = [&](const AttentionCase& c, ScoreActivation activation) {
    EXPECT_LT(compare(c, activation, forward, backward), 1.0) << c << ", f " << int(activation);
  };
  for (const ScoreActivation activation : kActivations) {
    for (const AttentionWindow window : {AttentionWindow{}, kCausal, AttentionWindow{20, 7}}) {
      AttentionCase c;
      c.window = window;
      expect_close(c, activation);  // no sequence
      c.q_lengths = c.k_lengths = {0, 1, 3, 4, 5, 0, 15, 16, 17, 31, 33, 0}, c.packed = true;
      expect_close(c, activation);
      c.q_lengths = {3, 0, 8, 2, 7}, c.k_lengths = {7, 4, 5, 0, 600}, c.packed = false;
      c.heads = 4, c.value_dim = 17, c.distances = 40, c.time_buckets = 50;
      expect_close(c, activation);
    }
  }
}

TEST(Gdpa, AnyProblemAgreesWithTheReference) {
  Shares forward("gdpa forward, drawn"), backward("gdpa backward, drawn");
  EXPECT_TRUE(rc::check([&] {
    const AttentionCase c = any_attention_case();
    const int64_t f = drawn(0, 7);
    RC_LOG() << c << ", f " << f;
    RC_ASSERT(compare(c, kActivations[f], forward, backward) < 1.0);
  }));
}

// f of one score: q = x, k = 1, v = 1, over a range that holds every branch.
TEST(Gdpa, TheActivationsAreWhatTheyAreCalled) {
  const auto of = [](ScoreActivation f, float x) {
    AttentionCase c;
    c.q_lengths = c.k_lengths = {1}, c.heads = c.kv_heads = c.head_dim = c.value_dim = 1;
    Data data(c, f);
    data.q.data[0] = x, data.k.data[0] = data.v.data[0] = data.d_o.data[0] = 1;
    data.p.beta = 1;
    data.run(false);
    return std::pair{data.o.data[0], data.d_q.data[0]};
  };
  using F = ScoreActivation;
  EXPECT_EQ(of(F::kIdentity, -2), std::pair(-2.0f, 1.0f));
  EXPECT_EQ(of(F::kRelu, -2), std::pair(0.0f, 0.0f));
  EXPECT_EQ(of(F::kRelu, 0), std::pair(0.0f, 0.0f));
  EXPECT_EQ(of(F::kRelu, 2), std::pair(2.0f, 1.0f));
  EXPECT_EQ(of(F::kSquaredRelu, 3), std::pair(9.0f, 6.0f));
  EXPECT_EQ(of(F::kLeakyRelu, -2).second, 0.01f);
  EXPECT_EQ(of(F::kHardSwish, -3), std::pair(0.0f, 0.0f));
  EXPECT_EQ(of(F::kHardSwish, 3), std::pair(3.0f, 1.0f));
  EXPECT_FLOAT_EQ(of(F::kHardSwish, 1.5f).first, 1.125f);
  EXPECT_FLOAT_EQ(of(F::kSilu, 1).first, 0.73105858f);
  EXPECT_FLOAT_EQ(of(F::kSilu, -30).first, -2.8072869e-12f);
  EXPECT_FLOAT_EQ(of(F::kGelu, 1).first, 0.84134475f);
  EXPECT_NEAR(of(F::kGeluTanh, 1).first, 0.841192f, 1e-6f);
  for (const F f : kActivations) EXPECT_EQ(of(f, 0).first, 0.0f);
}

TEST(Gdpa, AnySplitOverTasksGivesTheSameBits) {
  AttentionCase c;
  c.q_lengths = c.k_lengths = {5, 40, 0, 17}, c.heads = 4, c.distances = 9, c.time_buckets = 30;
  Data whole(c, ScoreActivation::kSilu), parts(c, ScoreActivation::kSilu);
  whole.run(false);
  for (int64_t task = 8; task-- > 0;) v3::gdpa_forward_cpu(parts.p, task, task + 1);
  for (int64_t task = 8; task-- > 0;) v3::gdpa_backward_cpu(parts.p, task, task + 1);
  parts.finish();
  EXPECT_EQ(whole.o.data, parts.o.data);
  EXPECT_EQ(whole.d_q.data, parts.d_q.data);
  EXPECT_EQ(whole.d_k.data, parts.d_k.data);
  EXPECT_EQ(whole.d_v.data, parts.d_v.data);
  EXPECT_EQ(whole.d_position, parts.d_position);
  EXPECT_EQ(whole.d_time, parts.d_time);
}

// The reference's gradients against finite differences of the reference, for the smooth ones.
TEST(Gdpa, TheReferenceDifferentiatesItself) {
  for (const ScoreActivation activation : {ScoreActivation::kIdentity, ScoreActivation::kSilu,
                                           ScoreActivation::kGelu, ScoreActivation::kGeluTanh}) {
    AttentionCase c;
    c.q_lengths = {3, 2}, c.k_lengths = {4, 3}, c.heads = 2, c.kv_heads = 1, c.head_dim = 3;
    c.value_dim = 2, c.window = {2, 1}, c.distances = 3, c.time_buckets = 40;
    Data data(c, activation);
    gdpa_backward_ref(data.p);
    const auto loss = [&] {
      gdpa_forward_ref(data.p);
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
        EXPECT_NEAR(gradient[i], (up - down) / (2 * step), 1e-3) << int(activation) << " " << i;
      }
    };
    check(data.q.data, data.d_q.data);
    check(data.k.data, data.d_k.data);
    check(data.v.data, data.d_v.data);
    check(data.position, data.d_position);
    check(data.time, data.d_time);
  }
}

}  // namespace
}  // namespace tautline::kernels
