// The CUDA kernels of the dense block against the double references, for every element type: inputs
// are rounded to the type first, so the reference sees the very same values. A result may differ by
// its own rounding (half a unit in the last place) and by the bound of FP32 sums, which each test
// derives.
#include <algorithm>
#include <cmath>

#include "tautline/kernels/activation.h"
#include "tautline/kernels/dropout.h"
#include "tautline/kernels/norm.h"
#include "tautline/kernels/rope.h"
#include "tautline/kernels/softmax.h"

#include "gpu/device.h"
#include "kernels/embedding_cases.h"

namespace tautline::kernels {
namespace {

using gpu::DeviceArray;
using testing::half_ulp;
using testing::kElements;
using testing::name_of;
using testing::normal_values;
using testing::value_at;

constexpr double kEps = 0x1p-24;

/// Normal values of a type: on the device as they are, on the host as FP32.
struct Input {
  std::vector<uint8_t> bytes;
  std::vector<float> values;
  DeviceArray<uint8_t> device;
  Input(Element element, int64_t count, uint64_t seed, float std = 1.0f)
      : bytes(normal_values(element, count, seed, std)),
        values(static_cast<size_t>(count)),
        device(bytes) {
    for (int64_t i = 0; i < count; ++i) values[i] = value_at(bytes, element, i);
  }
};

/// An output of a type on the device.
struct Output {
  Element element;
  int64_t count;
  DeviceArray<uint8_t> device;
  Output(Element element, int64_t count)
      : element(element),
        count(count),
        device(static_cast<size_t>(count * element_bytes(element))) {}
  std::vector<float> values() const {
    const auto bytes = device.host();
    std::vector<float> out(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) out[i] = value_at(bytes, element, i);
    return out;
  }
};

/// |got - want| <= ulp |want| + bound(i), or half of float16's smallest step; the worst offender is
/// named.
template <class Bound>
void expect_close(const std::vector<float>& got, const std::vector<float>& want, double ulp,
                  const Bound& bound, const std::string& name) {
  ASSERT_EQ(got.size(), want.size());
  const bool half = ulp >= half_ulp(Element::kFloat16) && ulp < half_ulp(Element::kBFloat16);
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double allowed = ulp * std::fabs(want[i]) + bound(i) + (half ? 0x1p-25 : 1e-30);
    const double error = std::fabs(double{got[i]} - want[i]);
    const double share = std::isfinite(error) ? error / allowed : got[i] == want[i] ? 0 : 1e9;
    if (share > worst) worst = share, at = i;
  }
  EXPECT_LE(worst, 1.0) << name << " at " << at << ": got " << (want.empty() ? 0 : got[at])
                        << ", want " << (want.empty() ? 0 : want[at]);
}

auto flat(double value) {
  return [value](size_t) { return value; };
}

struct Shape {
  int64_t rows, width;
};
std::string text(const Shape& s, Element e) {
  return std::to_string(s.rows) + " x " + std::to_string(s.width) + " " + name_of(e);
}
std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const int64_t width : {1, 7, 8, 64, 100, 256, 264, 512, 1000, 1024, 2048, 2056, 4100})
    for (const int64_t rows : {0, 1, 9, 70}) all.push_back({rows, width});
  all.push_back({5000, 64});  // more rows than one pass of the grid
  return all;
}

// A lane adds width / 32 values in turn, then a tree: (width / 32 + 16) eps of the terms, which are
// below 5 sigma each for the values here.
double row_bound(int64_t width) { return (static_cast<double>(width) / 32 + 16) * kEps; }

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

TEST(SoftmaxGpu, StatisticsAndGradientFollowTheReference) {
  for (const int64_t rows : {0, 1, 9, 40})
    for (const int64_t classes : {0, 1, 7, 8, 100, 1024, 2048, 2056, 5003})
      for (const Element e : kElements)
        for (const bool sampled : {false, true}) {
          const int64_t stride = (classes + 7) / 8 * 8 + 8;
          const Input logits(e, rows * stride, 1, 3.0f), log_q(Element::kFloat32, classes, 2),
              extra(Element::kFloat32, rows, 3);
          std::vector<int64_t> column_id(classes), row_id(rows), target(rows);
          for (int64_t j = 0; j < classes; ++j) column_id[j] = j * 3;
          for (int64_t r = 0; r < rows; ++r) {
            row_id[r] = r % 5 * 3;
            target[r] = sampled || r % 4 == 3 ? -1 : r % std::max<int64_t>(classes, 1);
            if (classes == 0) target[r] = -1;
          }
          std::vector<float> reference = logits.values, max(rows), sum(rows), hit(rows, 7.f);
          SoftmaxRows p;
          p.logits = reference.data();
          p.row_stride = stride;
          p.rows = rows;
          p.classes = classes;
          p.scale = 0.7;
          p.weight = 0.3;
          p.log_q = sampled ? log_q.values.data() : nullptr;
          p.column_id = sampled ? column_id.data() : nullptr;
          p.row_id = sampled ? row_id.data() : nullptr;
          p.target = target.data();
          p.extra = sampled ? extra.values.data() : nullptr;
          p.max = max.data();
          p.sum = sum.data();
          p.target_logit = hit.data();
          softmax_statistics_ref(p);
          std::vector<float> lse(rows);
          for (int64_t r = 0; r < rows; ++r) lse[r] = max[r] + std::log(sum[r]);
          p.lse = lse.data();
          softmax_gradient_ref(p);
          const DeviceArray<int64_t> d_column(column_id), d_row(row_id), d_target(target);
          const DeviceArray<float> d_max(rows), d_sum(rows), d_hit(std::vector<float>(rows, 7.f)),
              d_lse(lse);
          const Output in_place(e, rows * stride);
          gpu::expect_success(cudaMemcpy(in_place.device.data(), logits.device.data(),
                                         logits.bytes.size(), cudaMemcpyDeviceToDevice));
          p.logits = in_place.device.data();
          if (sampled) {
            p.log_q = reinterpret_cast<const float*>(log_q.device.data());
            p.column_id = d_column.data();
            p.row_id = d_row.data();
            p.extra = reinterpret_cast<const float*>(extra.device.data());
          }
          p.target = d_target.data();
          p.max = d_max.data();
          p.sum = d_sum.data();
          p.target_logit = d_hit.data();
          p.lse = d_lse.data();
          p.element = e;
          softmax_statistics_cuda(p);
          const std::string name =
              std::to_string(rows) + " x " + std::to_string(classes) + name_of(e);
          expect_close(d_max.host(), max, 4 * kEps, flat(16 * kEps), name + " max");
          // Each exponential errs by 2 + 1.2 |x| units with |x| < 40; the running sum is rescaled
          // once a step: (classes / 32 + 64) eps of a sum of positive terms.
          const double relative = (static_cast<double>(classes) / 32 + 64 + 64) * kEps;
          expect_close(d_sum.host(), sum, relative, flat(0), name + " sum");
          expect_close(d_hit.host(), hit, 4 * kEps, flat(16 * kEps), name + " target");
          softmax_gradient_cuda(p);
          auto got = in_place.values();
          for (int64_t r = 0; r < rows; ++r)  // the padding of a row is left alone
            for (int64_t j = classes; j < stride; ++j)
              EXPECT_EQ(got[r * stride + j], logits.values[r * stride + j]);
          expect_close(got, reference, half_ulp(e) + 128 * kEps, flat(128 * kEps * 0.3),
                       name + " gradient");
        }
}

TEST(RepeatBiasGpu, AddsAndSumsTheClassesOfEachHistory) {
  constexpr int64_t kRows = 37, kClasses = 211;
  for (const Element e : kElements) {
    const Input logits(e, kRows * kClasses, 1, 3.0f);
    std::vector<int64_t> first, last, column;
    for (int64_t r = 0; r < kRows; ++r) {  // 0 to 100 distinct classes; some are another shard's
      first.push_back(static_cast<int64_t>(column.size()));
      for (int64_t k = 0; k < r * r % 101; ++k)
        column.push_back(k % 7 == 6 ? -1 : (r + 2 * k) % kClasses);
      last.push_back(static_cast<int64_t>(column.size()));
    }
    std::vector<float> want = logits.values, want_sum(kRows), bias{-1.25f};
    SoftmaxRows p;
    p.logits = want.data();
    p.row_stride = p.classes = kClasses;
    p.rows = kRows;
    p.element = e;
    p.repeat = {first.data(), last.data(), column.data(), bias.data(), want_sum.data()};
    repeat_bias_add_ref(p);
    const Output in_place(e, kRows * kClasses);
    gpu::expect_success(cudaMemcpy(in_place.device.data(), logits.device.data(),
                                   logits.bytes.size(), cudaMemcpyDeviceToDevice));
    const DeviceArray<int64_t> d_first(first), d_last(last), d_column(column);
    const DeviceArray<float> d_bias(bias), d_sum(kRows);
    p.logits = in_place.device.data();
    p.repeat = {d_first.data(), d_last.data(), d_column.data(), d_bias.data(), d_sum.data()};
    repeat_bias_add_cuda(p);
    auto rounded = in_place.values();
    expect_close(rounded, want, half_ulp(e), flat(0), "logits" + name_of(e));
    repeat_bias_sum_cuda(p);
    p.logits = rounded.data();
    p.repeat = {first.data(), last.data(), column.data(), bias.data(), want_sum.data()};
    repeat_bias_sum_ref(p);
    // 100 terms of up to 14 in 32 lanes.
    expect_close(d_sum.host(), want_sum, 16 * kEps, flat(16 * 14 * kEps), "sum" + name_of(e));
  }
}

TEST(NormalizeGpu, FollowsTheReferenceBothWays) {
  for (const auto& s : shapes())
    for (const Element e : kElements) {
      const int64_t n = s.rows * s.width;
      const Input x(e, n, 1), y(e, n, 2, 0.1f), d_y(e, n, 3);
      std::vector<float> want(static_cast<size_t>(n)), norm(s.rows), want_d(want);
      L2Normalize p;
      p.x = x.values.data();
      p.y = want.data();
      p.norm = norm.data();
      p.rows = s.rows;
      p.width = s.width;
      l2_normalize_forward_ref(p);
      L2Normalize back = p;
      back.y = const_cast<float*>(y.values.data());
      back.d_y = d_y.values.data();
      back.d_x = want_d.data();
      l2_normalize_backward_ref(back);
      const Output out(e, n), d_x(e, n);
      const DeviceArray<float> device_norm(s.rows), given_norm(norm);
      p.x = x.device.data();
      p.y = out.device.data();
      p.norm = device_norm.data();
      p.element = back.element = e;
      back.y = y.device.data();
      back.d_y = d_y.device.data();
      back.d_x = d_x.device.data();
      back.norm = given_norm.data();
      l2_normalize_forward_cuda(p);
      l2_normalize_backward_cuda(back);
      const double bound = row_bound(s.width);
      expect_close(out.values(), want, half_ulp(e) + bound, flat(0), text(s, e));
      expect_close(
          d_x.values(), want_d, half_ulp(e),
          [&](size_t i) {
            // dot y: at most width products of 0.5 x 5.
            return bound * (5 + 2.5 * static_cast<double>(s.width) * 0.5) / norm[i / s.width];
          },
          text(s, e) + " d_x");
    }
}

}  // namespace
}  // namespace tautline::kernels
