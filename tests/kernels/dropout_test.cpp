#include "tautline/kernels/dropout.h"

#include "kernels/close.h"

namespace tautline::kernels {
namespace {

using namespace testing;

TEST(Dropout, BothInstructionSetsGiveTheMaskOfTheReference) {
  Shares shares("dropout");
  for (const int64_t rows : {0, 1, 64, 65}) {
    for (const int64_t width : {1, 3, 4, 31, 32, 33, 63, 64, 65, 200}) {
      const auto x = normals(rows * width, 1), residual = normals(rows * width, 2);
      const auto bias = normals(width, 3);
      std::vector<int64_t> sample(rows), position(rows);
      for (int64_t t = 0; t < rows; ++t) {
        sample[t] = t / 5 + (t % 2 ? int64_t{1} << 40 : 0);
        position[t] = t % 5;
      }
      std::vector<float> want(rows * width), want_bias(width);
      std::vector<float> workspace(((rows + 63) / 64) * width);
      Dropout p;
      p.x = x.data();
      p.residual = residual.data();
      p.bias = bias.data();
      p.out = want.data();
      p.sample = sample.data();
      p.position = position.data();
      p.d_bias = want_bias.data();
      p.workspace = workspace.data();
      p.partials = (rows + kDropoutBlockRows - 1) / kDropoutBlockRows;
      p.key = dropout_key(42, 1000, 3);
      p.p = 0.3;
      p.rows = rows;
      p.width = width;
      dropout_ref(p);
      for_each_isa(has_v4(), [&](const char* isa, bool use_v4) {
        SCOPED_TRACE(::testing::Message() << isa << " rows " << rows << " width " << width);
        std::vector<float> got(rows * width), got_bias(width);
        p.out = got.data();
        p.d_bias = got_bias.data();
        use_v4 ? v4::dropout_cpu(p, 0, p.partials) : v3::dropout_cpu(p, 0, p.partials);
        use_v4 ? v4::dropout_finish_cpu(p) : v3::dropout_finish_cpu(p);
        // Three operations on terms up to 8; a wrong mask bit is wrong by the whole value.
        EXPECT_CLOSE(shares, got, want, rows, 4, 8.0);
        EXPECT_CLOSE(shares, got_bias, want_bias, 1, 70, 8.0);
      });
    }
  }
}

TEST(Dropout, KeysOfStepsAndSitesDiffer) {
  EXPECT_NE(dropout_key(1, 0, 0), dropout_key(1, 1, 0));
  EXPECT_NE(dropout_key(1, 0, 0), dropout_key(1, 0, 1));
  EXPECT_NE(dropout_key(1, 0, 0), dropout_key(2, 0, 0));
  EXPECT_NE(dropout_key(1, 1, 0), dropout_key(1, uint64_t{1} << 32, 0));
}

TEST(Dropout, ADroppedNanIsZero) {
  std::vector<float> x(64, NAN), out(64);
  const std::vector<int64_t> zero(1);
  Dropout p;
  p.x = x.data();
  p.out = out.data();
  p.sample = p.position = zero.data();
  p.p = 0.5;
  p.rows = 1;
  p.width = 64;
  dropout_cpu(p, 0, 1);
  const auto zeros = std::count(out.begin(), out.end(), 0.0f);
  EXPECT_GT(zeros, 10);
  EXPECT_LT(zeros, 54);
}

}  // namespace
}  // namespace tautline::kernels
