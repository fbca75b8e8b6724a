#include "tautline/kernels/attention.h"

#include "kernels/close.h"

namespace tautline::kernels {
namespace {

using namespace testing;

struct Case {
  std::string name;
  std::vector<int64_t> q_lengths, k_lengths;
  int64_t heads, head_dim;
  bool causal;
};

std::vector<int64_t> offsets_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets{0};
  for (const int64_t n : lengths) offsets.push_back(offsets.back() + n);
  return offsets;
}

/// q, k, v in one packed [T, 3, H, D] where the lengths allow it, else apart.
struct Data {
  std::vector<int64_t> q_offsets, k_offsets;
  std::vector<float> packed, q, k, v, o, lse, d_o, d_q, d_k, d_v;
  JaggedAttention p;
  explicit Data(const Case& c)
      : q_offsets(offsets_of(c.q_lengths)), k_offsets(offsets_of(c.k_lengths)) {
    const int64_t tq = q_offsets.back(), tk = k_offsets.back(), row = c.heads * c.head_dim;
    p.q_offsets = q_offsets.data();
    p.k_offsets = k_offsets.data();
    p.sequences = static_cast<int64_t>(c.q_lengths.size());
    p.heads = c.heads;
    p.head_dim = c.head_dim;
    p.q_tokens = tq;
    p.k_tokens = tk;
    p.causal = c.causal;
    p.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
    if (c.q_lengths == c.k_lengths) {
      packed = normals(tq * 3 * row, 1);
      p.q = {packed.data(), 3 * row, c.head_dim};
      p.k = {packed.data() + row, 3 * row, c.head_dim};
      p.v = {packed.data() + 2 * row, 3 * row, c.head_dim};
    } else {
      p.q = own(q = normals(tq * row, 1), c);
      p.k = own(k = normals(tk * row, 2), c);
      p.v = own(v = normals(tk * row, 3), c);
    }
    p.o = own(o = std::vector<float>(tq * row, -7.0f), c);
    lse.resize(c.heads * tq);
    p.lse = lse.data();
    p.d_o = own(d_o = normals(tq * row, 4), c);
    p.d_q = own(d_q = std::vector<float>(tq * row, -7.0f), c);
    p.d_k = own(d_k = std::vector<float>(tk * row, -7.0f), c);
    p.d_v = own(d_v = std::vector<float>(tk * row, -7.0f), c);
  }
  Data(const Data&) = delete;
  static HeadsView own(std::vector<float>& x, const Case& c) {
    return {x.data(), c.heads * c.head_dim, c.head_dim};
  }
  void run(bool use_v4) {
    const int64_t tasks = p.sequences * p.heads;
    if (use_v4) {
      v4::jagged_attention_forward_cpu(p, 0, tasks);
      v4::jagged_attention_backward_cpu(p, 0, tasks);
    } else {
      v3::jagged_attention_forward_cpu(p, 0, tasks);
      v3::jagged_attention_backward_cpu(p, 0, tasks);
    }
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool causal : {false, true}) {
    all.push_back({"no sequence", {}, {}, 2, 32, causal});
    all.push_back({"empty ones", {0, 0}, {0, 0}, 2, 32, causal});
    const std::vector<int64_t> mixed = {0, 1, 3, 4, 5, 0, 15, 16, 17, 31, 33, 0};
    for (const int64_t dim : {1, 8, 15, 16, 17, 32, 64, 100})
      all.push_back({"mixed, dim " + std::to_string(dim), mixed, mixed, 2, dim, causal});
    for (const int64_t n : {511, 512, 513, 1100})
      all.push_back({"one of " + std::to_string(n), {n}, {n}, 1, 32, causal});
    all.push_back({"cross", {3, 0, 8, 2, 7}, {7, 4, 5, 0, 600}, 3, 32, causal});
    all.push_back({"more queries than keys", {600}, {10}, 1, 16, causal});
  }
  return all;
}

TEST(JaggedAttention, BothInstructionSetsAgreeWithTheReference) {
  Shares forward("attention forward"), backward("attention backward");
  for (const Case& c : cases()) {
    Data want(c);
    jagged_attention_forward_ref(want.p);
    jagged_attention_backward_ref(want.p);
    for_each_isa(has_v4(), [&](const char* isa, bool use_v4) {
      SCOPED_TRACE(::testing::Message() << isa << " " << c.name << " causal " << c.causal);
      Data got(c);
      got.run(use_v4);
      // Scores: dim terms, of size up to 5, in the exponent; then sums over n keys in tiles of 512
      // and lanes: sqrt of the sequential terms is the expected loss, all of them the bound.
      int64_t longest = 1;
      for (const int64_t n : c.k_lengths) longest = std::max(longest, n);
      for (const int64_t n : c.q_lengths) longest = std::max(longest, n);
      const double units = 5.0 * (static_cast<double>(c.head_dim) / 4 + 4) + longest / 4.0 + 16;
      EXPECT_CLOSE(forward, got.o, want.o, got.p.q_tokens, units, 1.0);
      EXPECT_CLOSE(forward, got.lse, want.lse, 1, units, 1.0);
      EXPECT_CLOSE(backward, got.d_q, want.d_q, got.p.q_tokens, units, 1.0);
      EXPECT_CLOSE(backward, got.d_k, want.d_k, got.p.k_tokens, units, 1.0);
      EXPECT_CLOSE(backward, got.d_v, want.d_v, got.p.k_tokens, units, 1.0);
    });
  }
}

TEST(JaggedAttention, AQueryThatSeesNothingGivesZero) {
  const Case c{"", {4}, {2}, 1, 8, true};
  Data data(c);
  data.run(false);
  for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(data.o[i], 0.0f);
  for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(data.d_q[i], 0.0f);
  EXPECT_EQ(data.lse[0], -INFINITY);
  EXPECT_NE(data.o[16], 0.0f);
}

TEST(JaggedAttention, AnySplitOverTasksGivesTheSameBits) {
  const Case c{"", {5, 40, 0, 17}, {5, 40, 0, 17}, 2, 32, true};
  Data whole(c), parts(c);
  whole.run(false);
  for (int64_t task = 8; task-- > 0;) v3::jagged_attention_forward_cpu(parts.p, task, task + 1);
  for (int64_t task = 8; task-- > 0;) v3::jagged_attention_backward_cpu(parts.p, task, task + 1);
  EXPECT_EQ(whole.o, parts.o);
  EXPECT_EQ(whole.d_q, parts.d_q);
  EXPECT_EQ(whole.d_k, parts.d_k);
  EXPECT_EQ(whole.d_v, parts.d_v);
}

// The reference's gradients against finite differences of the reference.
TEST(JaggedAttention, TheReferenceDifferentiatesItself) {
  const Case c{"", {3, 2}, {4, 3}, 1, 3, true};
  Data data(c);
  jagged_attention_forward_ref(data.p);
  jagged_attention_backward_ref(data.p);
  const auto loss = [&] {
    jagged_attention_forward_ref(data.p);
    double total = 0;
    for (size_t i = 0; i < data.o.size(); ++i) total += double{data.o[i]} * data.d_o[i];
    return total;
  };
  const auto check = [&](std::vector<float>& x, const std::vector<float>& gradient) {
    for (size_t i = 0; i < x.size(); ++i) {
      const float kept = x[i], step = 0x1p-6f;
      x[i] = kept + step;
      const double up = loss();
      x[i] = kept - step;
      const double down = loss();
      x[i] = kept;
      // Third derivatives (below 10 here) times step^2 / 6, and outputs rounded to FP32.
      EXPECT_NEAR(gradient[i], (up - down) / (2 * step), 5e-4) << i;
    }
  };
  check(data.q, data.d_q);
  check(data.k, data.d_k);
  check(data.v, data.d_v);
}

}  // namespace
}  // namespace tautline::kernels
