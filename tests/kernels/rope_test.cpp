#include "tautline/kernels/rope.h"

#include "kernels/close.h"

namespace tautline::kernels {
namespace {

using namespace testing;

Rope params(const std::vector<float>& in, std::vector<float>& out,
            const std::vector<int64_t>& position, int64_t heads, int64_t head_dim) {
  Rope p;
  p.in = in.data();
  p.out = out.data();
  p.position = position.data();
  p.tokens = static_cast<int64_t>(position.size());
  p.heads = heads;
  p.head_dim = head_dim;
  p.in_token = p.out_token = 3 * heads * head_dim;
  return p;
}

TEST(Rope, BothInstructionSetsAgreeWithTheReference) {
  Shares shares("rope");
  const std::vector<int64_t> position = {0, 1, 2, 3, 0, 1, 199, 2047, 2048, 0, 100000};
  for (const int64_t head_dim : {2, 14, 16, 18, 32, 64, 128}) {
    for (const bool backward : {false, true}) {
      const auto in = normals(static_cast<int64_t>(position.size()) * 3 * 2 * head_dim, 7);
      std::vector<float> want(in.size());
      Rope p = params(in, want, position, 2, head_dim);
      p.backward = backward;
      rope_ref(p);
      for_each_isa(has_v4(), [&](const char* isa, bool use_v4) {
        SCOPED_TRACE(::testing::Message() << isa << " head_dim " << head_dim);
        std::vector<float> got(in.size());
        p.out = got.data();
        use_v4 ? v4::rope_cpu(p, 0, p.tokens) : v3::rope_cpu(p, 0, p.tokens);
        // The angle is a product of two rounded numbers: its error is 1.5 units of itself, and it
        // is at most the position; then four operations on values that reach 4.
        for (int64_t t = 0; t < p.tokens; ++t) {
          const int64_t row = 3 * 2 * head_dim;
          const std::vector<float> a(got.begin() + t * row, got.begin() + (t + 1) * row);
          const std::vector<float> b(want.begin() + t * row, want.begin() + (t + 1) * row);
          EXPECT_CLOSE(shares, a, b, 1, 2.0 * static_cast<double>(position[t]) + 6, 1.0);
        }
      });
    }
  }
}

TEST(Rope, TurnsBackAndWorksInPlace) {
  const std::vector<int64_t> position = {5, 0, 77};
  const auto in = normals(3 * 3 * 2 * 32, 8);
  std::vector<float> once(in.size());
  Rope p = params(in, once, position, 2, 32);
  rope_cpu(p, 0, 3);
  std::vector<float> twice = once;
  p.in = p.out = twice.data();
  p.backward = true;
  rope_cpu(p, 0, 3);
  EXPECT_LT(share_used(twice, in, 1, 8), 1.0);
  EXPECT_NE(once, in);
}

TEST(Rope, LeavesVAloneWhereTheOutputHasNoPlaceForIt) {
  const std::vector<int64_t> position = {5, 0, 77};
  const int64_t heads = 2, head_dim = 18, width = heads * head_dim;
  const auto in = normals(3 * 3 * width, 8);
  std::vector<float> all(in.size()), two(static_cast<size_t>(3 * 2 * width)), want = two;
  Rope p = params(in, all, position, heads, head_dim);
  rope_cpu(p, 0, 3);
  p.with_v = false;
  p.out_token = 2 * width;
  p.out = two.data();
  rope_cpu(p, 0, 3);
  p.out = want.data();
  rope_ref(p);
  for (int64_t t = 0; t < 3; ++t)
    for (int64_t c = 0; c < 2 * width; ++c) {
      EXPECT_EQ(two[t * 2 * width + c], all[t * 3 * width + c]);
      EXPECT_NEAR(two[t * 2 * width + c], want[t * 2 * width + c], 1e-4);
    }
}

}  // namespace
}  // namespace tautline::kernels
