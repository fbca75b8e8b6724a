#include "tautline/kernels/activation.h"

#include "kernels/close.h"

namespace tautline::kernels {
namespace {

using namespace testing;

struct Data {
  std::vector<float> x, bias, d_out, out, d_x, d_bias, workspace;
  Activation params;
  Data(ActivationKind kind, int64_t rows, int64_t width, bool with_bias) {
    params.kind = kind;
    params.rows = rows;
    params.width = width;
    const int64_t input = params.input_width();
    params.partials = (rows + kActivationBlockRows - 1) / kActivationBlockRows;
    x = normals(rows * input, 1, 3.0f);
    bias = normals(input, 2);
    d_out = normals(rows * width, 3);
    out.resize(rows * width);
    d_x.resize(rows * input);
    d_bias.resize(with_bias ? input : 0);
    workspace.resize(params.partials * input);
    point(with_bias);
  }
  Data(const Data& other) = delete;
  void point(bool with_bias) {
    params.x = x.data();
    params.bias = with_bias ? bias.data() : nullptr;
    params.d_out = d_out.data();
    params.out = out.data();
    params.d_x = d_x.data();
    params.d_bias = with_bias ? d_bias.data() : nullptr;
    params.workspace = workspace.data();
  }
  void run(bool use_v4) {
    const Activation& p = params;
    if (use_v4) {
      v4::activation_forward_cpu(p, 0, p.rows);
      v4::activation_backward_cpu(p, 0, p.partials);
      if (p.d_bias) v4::activation_backward_finish_cpu(p);
    } else {
      v3::activation_forward_cpu(p, 0, p.rows);
      v3::activation_backward_cpu(p, 0, p.partials);
      if (p.d_bias) v3::activation_backward_finish_cpu(p);
    }
  }
};

TEST(Activation, BothInstructionSetsAgreeWithTheReference) {
  Shares forward("activation forward"), backward("activation backward");
  for (const auto kind : {ActivationKind::kSwiglu, ActivationKind::kGelu}) {
    for (const int64_t rows : {0, 1, 64, 65, 129}) {
      for (const int64_t width : {1, 7, 15, 16, 17, 100}) {
        for (const bool bias : {false, true}) {
          Data want(kind, rows, width, bias);
          activation_forward_ref(want.params);
          activation_backward_ref(want.params);
          for_each_isa(has_v4(), [&](const char* isa, bool use_v4) {
            SCOPED_TRACE(::testing::Message() << isa << " kind " << int(kind) << " rows " << rows
                                              << " width " << width << " bias " << bias);
            Data got(kind, rows, width, bias);
            got.run(use_v4);
            // exp of an argument up to 100 is off by 100 / 2 units from the rounding of x^2 / 2
            // where it is tiny, so absolutely by less than 4; some 16 operations on terms up to |x|
            // <= 13.
            EXPECT_CLOSE(forward, got.out, want.out, rows, 20, 1.0);
            EXPECT_CLOSE(backward, got.d_x, want.d_x, rows, 20, 13.0);
            EXPECT_CLOSE(backward, got.d_bias, want.d_bias, 1, 20 + 66, 13.0);
          });
        }
      }
    }
  }
}

TEST(Activation, GeluIsPreciseRelativeToItselfInTheNegativeTailToo) {
  constexpr int kPoints = 128;
  Data got(ActivationKind::kGelu, 1, kPoints, false),
      want(ActivationKind::kGelu, 1, kPoints, false);
  for (int i = 0; i < kPoints; ++i) got.x[i] = want.x[i] = 0.15f * static_cast<float>(i - 63);
  activation_forward_ref(want.params);
  got.run(false);
  Shares shares("gelu, relative");
  for (int i = 0; i < kPoints; ++i) {
    // The exponent x^2 / 2 is rounded to 24 bits and exp passes that on as x^2 / 2 units; 2.5 units
    // of the polynomial, and a dozen operations.
    const double units = 16 + 0.5 * double{want.x[i]} * want.x[i];
    EXPECT_CLOSE(shares, std::vector<float>{got.out[i]}, std::vector<float>{want.out[i]}, 1, units,
                 0.0);
  }
}

TEST(Activation, ExtremeInputsGiveNoNan) {
  for (const auto kind : {ActivationKind::kSwiglu, ActivationKind::kGelu}) {
    Data data(kind, 1, 4, false);
    for (float& x : data.x) x = 1.0f;
    data.x[0] = -1e4f, data.x[1] = 1e4f, data.x[2] = -90.0f, data.x[3] = 0.0f;
    data.run(false);
    EXPECT_NEAR(data.out[0], 0.0f, 1e-30);
    EXPECT_EQ(data.out[1], 1e4f);
    for (const float d : data.d_x) EXPECT_TRUE(std::isfinite(d));
  }
}

}  // namespace
}  // namespace tautline::kernels
