// The CUDA kernels of softmax over classes and of normalised vectors against the double references,
// for every element type (dense_device.h).
#include <algorithm>

#include "tautline/kernels/softmax.h"

#include "gpu/dense_device.h"

namespace tautline::kernels {
namespace {

using namespace testing;

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
