// The CUDA kernels of rotary positions, activations and dropout against the double references, for
// every element type (dense_device.h).
#include "tautline/kernels/activation.h"
#include "tautline/kernels/dropout.h"
#include "tautline/kernels/rope.h"

#include "gpu/dense_device.h"

namespace tautline::kernels {
namespace {

using namespace testing;

// Angles are position x frequency in FP32: relative error 2 eps, so 2 eps x angle absolute.
TEST(RopeGpu, FollowsTheReferenceBothWays) {
  for (const int64_t tokens : {0, 1, 37})
    for (const int64_t heads : {1, 3, 8})
      for (const int64_t head_dim : {2, 8, 64, 128})
        for (const Element e : kElements)
          for (const bool backward : {false, true})
            for (const bool in_place : {false, true}) {
              const int64_t n = tokens * 3 * heads * head_dim;
              const Input in(e, n, 1);
              const Output out(e, n);
              std::vector<int64_t> position(static_cast<size_t>(tokens));
              for (int64_t t = 0; t < tokens; ++t) position[t] = t * 53;
              const DeviceArray<int64_t> device_position(position);
              std::vector<float> want(static_cast<size_t>(n));
              Rope p;
              p.in = in.values.data();
              p.out = want.data();
              p.position = position.data();
              p.tokens = tokens;
              p.heads = heads;
              p.head_dim = head_dim;
              p.in_token = p.out_token = 3 * heads * head_dim;
              p.backward = backward;
              rope_ref(p);
              p.in = in.device.data();
              p.out = in_place ? in.device.data() : out.device.data();
              p.position = device_position.data();
              p.element = e;
              if (in_place && n > 0)
                gpu::expect_success(cudaMemcpy(out.device.data(), in.device.data(), in.bytes.size(),
                                               cudaMemcpyDeviceToDevice));
              if (in_place) p.in = p.out = out.device.data();
              rope_cuda(p);
              expect_close(
                  out.values(), want, half_ulp(e),
                  [&](size_t i) {
                    const double angle = static_cast<double>(position[i / (3 * heads * head_dim)]);
                    return 10 * (4 + 2 * angle) * kEps;  // |a| + |b| < 10
                  },
                  std::to_string(head_dim) + name_of(e));
            }
}

TEST(ActivationGpu, FollowsTheReferenceBothWays) {
  for (const auto& s : shapes())
    for (const Element e : kElements)
      for (const ActivationKind kind : {ActivationKind::kSwiglu, ActivationKind::kGelu})
        for (const bool with_bias : {false, true}) {
          Activation p;
          p.kind = kind;
          p.rows = s.rows;
          p.width = s.width;
          const int64_t input = p.input_width(), n = s.rows * s.width;
          const Input x(e, s.rows * input, 1, 2.0f), d_out(e, n, 2),
              bias(Element::kFloat32, input, 3);
          std::vector<float> want(static_cast<size_t>(n)), want_x(x.values.size()),
              want_b(static_cast<size_t>(input));
          p.x = x.values.data();
          p.bias = with_bias ? bias.values.data() : nullptr;
          p.d_bias = with_bias ? want_b.data() : nullptr;
          p.out = want.data();
          p.d_out = d_out.values.data();
          p.d_x = want_x.data();
          activation_forward_ref(p);
          activation_backward_ref(p);
          const Output out(e, n), d_x(e, s.rows * input);
          p.partials = activation_partials_cuda(s.rows, input);
          const DeviceArray<float> d_bias(static_cast<size_t>(input)),
              workspace(static_cast<size_t>(p.partials * input));
          p.x = x.device.data();
          p.bias = with_bias ? reinterpret_cast<const float*>(bias.device.data()) : nullptr;
          p.d_bias = with_bias ? d_bias.data() : nullptr;
          p.out = out.device.data();
          p.d_out = d_out.device.data();
          p.d_x = d_x.device.data();
          p.workspace = workspace.data();
          p.element = e;
          activation_forward_cuda(p);
          activation_backward_cuda(p);
          // __expf errs by 2 + 1.2 |x| units; |x|, |u| < 12, so factors stay below 144.
          const double bound = 32 * kEps * 144;
          expect_close(out.values(), want, half_ulp(e), flat(bound), text(s, e) + " out");
          expect_close(d_x.values(), want_x, half_ulp(e), flat(bound * 5), text(s, e) + " d_x");
          if (!with_bias) continue;
          expect_close(
              d_bias.host(), want_b, 0,
              [&](size_t d) {
                double magnitude = 0;
                for (int64_t t = 0; t < s.rows; ++t) magnitude += std::fabs(want_x[t * input + d]);
                return (static_cast<double>(s.rows) + 32) * kEps * magnitude + s.rows * bound * 5;
              },
              text(s, e) + " d_bias");
        }
}

TEST(DropoutGpu, HasTheReferencesMask) {
  for (const auto& s : shapes())
    for (const Element e : kElements)
      for (const bool backward : {false, true}) {
        const int64_t n = s.rows * s.width;
        const Input x(e, n, 1), residual(e, n, 2), bias(Element::kFloat32, s.width, 3);
        std::vector<int64_t> sample(s.rows), position(s.rows);
        for (int64_t t = 0; t < s.rows; ++t) {
          sample[t] = (int64_t{1} << 33) + t / 10;
          position[t] = t % 10;
        }
        const DeviceArray<int64_t> device_sample(sample), device_position(position);
        std::vector<float> want(static_cast<size_t>(n)), want_b(s.width);
        Dropout p;
        p.x = x.values.data();
        p.residual = backward ? nullptr : residual.values.data();
        p.bias = backward ? nullptr : bias.values.data();
        p.d_bias = backward ? want_b.data() : nullptr;
        p.out = want.data();
        p.sample = sample.data();
        p.position = position.data();
        p.key = dropout_key(3, 1000, 5);
        p.p = 0.3;
        p.rows = s.rows;
        p.width = s.width;
        dropout_ref(p);
        const Output out(e, n);
        p.partials = dropout_partials_cuda(s.rows, s.width);
        const DeviceArray<float> d_bias(s.width),
            workspace(static_cast<size_t>(p.partials * s.width));
        p.x = x.device.data();
        p.residual = backward ? nullptr : residual.device.data();
        p.bias = backward ? nullptr : reinterpret_cast<const float*>(bias.device.data());
        p.d_bias = backward ? d_bias.data() : nullptr;
        p.out = out.device.data();
        p.sample = device_sample.data();
        p.position = device_position.data();
        p.workspace = workspace.data();
        p.element = e;
        dropout_cuda(p);
        expect_close(out.values(), want, half_ulp(e), flat(8 * kEps * 20), text(s, e));
        if (backward)
          expect_close(
              d_bias.host(), want_b, 0,
              [&](size_t d) {
                double magnitude = 0;
                for (int64_t t = 0; t < s.rows; ++t) magnitude += std::fabs(want[t * s.width + d]);
                return (static_cast<double>(s.rows) + 8) * kEps * magnitude;
              },
              text(s, e) + " d_bias");
      }
}

}  // namespace
}  // namespace tautline::kernels
