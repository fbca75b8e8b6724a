// The CUDA kernels of norms against the double references, for every element type (dense_device.h).
#include "tautline/kernels/norm.h"

#include "gpu/dense_device.h"

namespace tautline::kernels {
namespace {

using namespace testing;

TEST(NormGpu, ForwardFollowsTheReference) {
  for (const auto& s : shapes())
    for (const Element e : kElements)
      for (const NormKind kind : {NormKind::kRms, NormKind::kLayer})
        for (const bool with_residual : {false, true}) {
          const int64_t n = s.rows * s.width;
          const Input x(e, n, 1), residual(e, n, 2), weight(Element::kFloat32, s.width, 3),
              bias(Element::kFloat32, s.width, 4);
          const Output sum(e, n), out(e, n);
          const DeviceArray<float> mean(s.rows), rstd(s.rows);
          NormForward p;
          p.x = x.device.data();
          p.residual = with_residual ? residual.device.data() : nullptr;
          p.weight = reinterpret_cast<const float*>(weight.device.data());
          p.bias = kind == NormKind::kLayer ? reinterpret_cast<const float*>(bias.device.data())
                                            : nullptr;
          p.sum = sum.device.data();
          p.out = out.device.data();
          p.mean = mean.data();
          p.rstd = rstd.data();
          p.rows = s.rows;
          p.width = s.width;
          p.kind = kind;
          p.element = e;
          norm_forward_cuda(p);
          std::vector<float> summed = x.values;
          if (with_residual) {
            for (int64_t i = 0; i < n; ++i)
              with_element(e, [&](auto zero) {
                summed[i] = to_float(from_float<decltype(zero)>(summed[i] + residual.values[i]));
              });
            EXPECT_TRUE(sum.values() == summed) << text(s, e);
          }
          std::vector<float> want(static_cast<size_t>(n)), want_mean(s.rows), want_rstd(s.rows);
          NormForward r = p;
          r.x = summed.data();
          r.residual = nullptr;
          r.sum = nullptr;
          r.weight = weight.values.data();
          r.bias = bias.values.data();
          r.out = want.data();
          r.mean = want_mean.data();
          r.rstd = want_rstd.data();
          norm_forward_ref(r);
          const double bound = row_bound(s.width);
          expect_close(rstd.host(), want_rstd, 4 * bound, flat(0), text(s, e) + " rstd");
          // Layer norm of one column divides rounding noise by sqrt(eps): its bound grows by rstd.
          expect_close(
              out.values(), want, half_ulp(e),
              [&](size_t i) {
                const double scale = 1 + std::fabs(want_rstd[i / s.width]);
                return 8 * bound *
                       (std::fabs(want[i]) + 4 * scale * std::fabs(weight.values[i % s.width]));
              },
              text(s, e) + " out");
        }
}

TEST(NormGpu, BackwardFollowsTheReferenceAndRepeatsBitForBit) {
  for (const auto& s : shapes())
    for (const Element e : kElements)
      for (const NormKind kind : {NormKind::kRms, NormKind::kLayer})
        for (const bool with_past : {false, true}) {
          if (kind == NormKind::kLayer && s.width < 8) continue;  // no variance to speak of
          const int64_t n = s.rows * s.width;
          const Input x(e, n, 1), d_out(e, n, 5), d_sum(e, n, 6),
              weight(Element::kFloat32, s.width, 3);
          std::vector<float> mean(s.rows), rstd(s.rows), ignored(static_cast<size_t>(n)),
              bias(static_cast<size_t>(s.width));
          NormForward f;
          f.x = x.values.data();
          f.weight = weight.values.data();
          f.bias = bias.data();
          f.out = ignored.data();
          f.mean = mean.data();
          f.rstd = rstd.data();
          f.rows = s.rows;
          f.width = s.width;
          f.kind = kind;
          norm_forward_ref(f);
          std::vector<float> want(static_cast<size_t>(n)), want_w(s.width), want_b(s.width);
          NormBackward p;
          p.d_out = d_out.values.data();
          p.d_sum = with_past ? d_sum.values.data() : nullptr;
          p.s = x.values.data();
          p.weight = weight.values.data();
          p.mean = mean.data();
          p.rstd = rstd.data();
          p.d_x = want.data();
          p.d_weight = want_w.data();
          p.d_bias = kind == NormKind::kLayer ? want_b.data() : nullptr;
          p.rows = s.rows;
          p.width = s.width;
          p.kind = kind;
          norm_backward_ref(p);
          const DeviceArray<float> d_mean(mean), d_rstd(rstd), d_weight(s.width), d_bias(s.width);
          const Output d_x(e, n);
          p.partials = norm_partials_cuda(s.rows, s.width);
          const DeviceArray<float> workspace(static_cast<size_t>(p.partials * 2 * s.width));
          p.d_out = d_out.device.data();
          p.d_sum = with_past ? d_sum.device.data() : nullptr;
          p.s = x.device.data();
          p.weight = reinterpret_cast<const float*>(weight.device.data());
          p.mean = d_mean.data();
          p.rstd = d_rstd.data();
          p.d_x = d_x.device.data();
          p.d_weight = d_weight.data();
          p.d_bias = kind == NormKind::kLayer ? d_bias.data() : nullptr;
          p.workspace = workspace.data();
          p.element = e;
          norm_backward_cuda(p);
          const auto first = d_weight.host();
          // Terms: rstd g and n mean(g n), each below rstd x 5 x 5 x 5.
          const double bound = 8 * row_bound(s.width);
          expect_close(
              d_x.values(), want, half_ulp(e),
              [&](size_t i) { return bound * 25 * (1 + rstd[i / s.width]); }, text(s, e) + " d_x");
          const auto columns = [&](size_t d) {  // FP32 sums over all rows
            double magnitude = 0;
            for (int64_t t = 0; t < s.rows; ++t)
              magnitude += std::fabs(d_out.values[t * s.width + d]) *
                           (1 + std::fabs(x.values[t * s.width + d]) * rstd[t]);
            return (static_cast<double>(s.rows) + 32) * kEps * magnitude;
          };
          expect_close(first, want_w, 0, columns, text(s, e) + " d_weight");
          if (kind == NormKind::kLayer)
            expect_close(d_bias.host(), want_b, 0, columns, text(s, e) + " d_bias");
          norm_backward_cuda(p);
          EXPECT_TRUE(d_weight.host() == first) << text(s, e);
        }
}

}  // namespace
}  // namespace tautline::kernels
