#include "tautline/kernels/norm.h"

#include "kernels/close.h"

namespace tautline::kernels {
namespace {

using namespace testing;

struct Case {
  int64_t rows, width;
  NormKind kind;
  bool residual;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int64_t rows : {0, 1, 63, 64, 65, 130})
    for (const int64_t width : {1, 7, 8, 9, 15, 16, 17, 64, 100})
      for (const NormKind kind : {NormKind::kRms, NormKind::kLayer})
        for (const bool residual : {false, true}) all.push_back({rows, width, kind, residual});
  return all;
}

/// All outputs of one forward and backward.
struct Outputs {
  std::vector<float> sum, out, mean, rstd, d_x, d_weight, d_bias, workspace;
  explicit Outputs(const Case& c)
      : sum(c.rows * c.width),
        out(sum),
        mean(c.rows),
        rstd(mean),
        d_x(sum),
        d_weight(c.width),
        d_bias(c.width),
        workspace(((c.rows + 63) / 64) * 2 * c.width) {}
};

struct Inputs {
  std::vector<float> x, residual, weight, bias, d_out, d_sum;
  explicit Inputs(const Case& c)
      : x(normals(c.rows * c.width, 1)),
        residual(normals(c.rows * c.width, 2)),
        weight(normals(c.width, 3)),
        bias(normals(c.width, 4)),
        d_out(normals(c.rows * c.width, 5)),
        d_sum(normals(c.rows * c.width, 6)) {}
};

NormForward forward_params(const Case& c, const Inputs& in, Outputs& o) {
  NormForward p;
  p.x = in.x.data();
  p.residual = c.residual ? in.residual.data() : nullptr;
  p.weight = in.weight.data();
  p.bias = in.bias.data();
  p.sum = c.residual ? o.sum.data() : nullptr;
  p.out = o.out.data();
  p.mean = c.kind == NormKind::kLayer ? o.mean.data() : nullptr;
  p.rstd = o.rstd.data();
  p.rows = c.rows;
  p.width = c.width;
  p.eps = 1e-2;  // large, so that width 1 does not divide by nothing
  p.kind = c.kind;
  return p;
}

NormBackward backward_params(const Case& c, const Inputs& in, Outputs& o) {
  NormBackward p;
  p.d_out = in.d_out.data();
  p.d_sum = c.residual ? in.d_sum.data() : nullptr;
  p.s = c.residual ? o.sum.data() : in.x.data();
  p.weight = in.weight.data();
  p.mean = o.mean.data();
  p.rstd = o.rstd.data();
  p.d_x = o.d_x.data();
  p.d_weight = o.d_weight.data();
  p.d_bias = c.kind == NormKind::kLayer ? o.d_bias.data() : nullptr;
  p.workspace = o.workspace.data();
  p.partials = (c.rows + kNormBlockRows - 1) / kNormBlockRows;
  p.rows = c.rows;
  p.width = c.width;
  p.kind = c.kind;
  return p;
}

void run(const Case& c, const Inputs& in, Outputs& o, bool v4) {
  const NormForward f = forward_params(c, in, o);
  const NormBackward b = backward_params(c, in, o);
  if (v4) {
    v4::norm_forward_cpu(f, 0, c.rows);
    v4::norm_backward_cpu(b, 0, b.partials);
    v4::norm_backward_finish_cpu(b);
  } else {
    v3::norm_forward_cpu(f, 0, c.rows);
    v3::norm_backward_cpu(b, 0, b.partials);
    v3::norm_backward_finish_cpu(b);
  }
}

TEST(Norm, BothInstructionSetsAgreeWithTheReference) {
  Shares forward("norm forward"), backward("norm backward"), weights("norm weight gradients");
  for (const Case& c : cases()) {
    const Inputs in(c);
    Outputs want(c);
    norm_forward_ref(forward_params(c, in, want));
    norm_backward_ref(backward_params(c, in, want));
    for_each_isa(has_v4(), [&](const char* isa, bool use_v4) {
      SCOPED_TRACE(::testing::Message() << isa << " rows " << c.rows << " width " << c.width
                                        << " kind " << int(c.kind) << " residual " << c.residual);
      Outputs got(c);
      run(c, in, got, use_v4);
      // Sums of width / 8 terms a lane, a tree of 4, then about ten operations on terms that are at
      // most rstd <= 1 / sqrt(eps) = 10 times the inputs, which reach 4.
      const double units = static_cast<double>(c.width) / 8 + 16;
      EXPECT_EQ(got.sum, want.sum);
      EXPECT_CLOSE(forward, got.out, want.out, c.rows, units, 4.0);
      EXPECT_CLOSE(forward, got.rstd, want.rstd, c.rows, units, 0.0);
      EXPECT_CLOSE(backward, got.d_x, want.d_x, c.rows, units, 40.0);
      // The sum over rows: 64 terms a block and the blocks.
      EXPECT_CLOSE(weights, got.d_weight, want.d_weight, 1, units + 70, 4.0);
      EXPECT_CLOSE(weights, got.d_bias, want.d_bias, 1, 70, 4.0);
    });
  }
}

TEST(Norm, ARowThatIsNotANumberStaysAlone) {
  const Case c{3, 16, NormKind::kLayer, false};
  Inputs in(c);
  Outputs clean(c), spoilt(c);
  run(c, in, clean, false);
  in.x[20] = NAN;
  run(c, in, spoilt, false);
  for (int64_t i = 0; i < 48; ++i) {
    if (i / 16 == 1) {
      EXPECT_TRUE(std::isnan(spoilt.out[i]));
    } else {
      EXPECT_EQ(spoilt.out[i], clean.out[i]);
    }
  }
}

}  // namespace
}  // namespace tautline::kernels
