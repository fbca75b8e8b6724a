// AdamW on the GPU against the double reference: runs that begin and end anywhere, with and without
// clipping, and nothing written beside them.
#include <cmath>

#include "tautline/kernels/adamw.h"

#include "gpu/device.h"

namespace tautline::kernels {
namespace {

using gpu::DeviceArray;

std::vector<float> numbers(size_t count, double phase, double size) {
  std::vector<float> x(count);
  for (size_t i = 0; i < count; ++i)
    x[i] = static_cast<float>(size * std::sin(1.3 * static_cast<double>(i) + phase));
  return x;
}

TEST(AdamWGpu, FollowsTheReference) {
  // [5, 6), [6, 13), a whole run from an odd number on, an aligned one, one of 2; gaps between.
  const std::vector<AdamWRun> runs = {{5, 1, 0.1f},
                                      {6, 7, 0.0f},
                                      {15, kAdamWRun, 0.1f},
                                      {16 + kAdamWRun, kAdamWRun - 3, 0.0f},
                                      {40001, 2, 0.2f}};
  constexpr size_t kCount = 40010;
  for (const float divisor : {0.0f, 2.5f})
    for (const int64_t step : {1, 1000}) {
      std::vector<float> value = numbers(kCount, 0, 1), first = numbers(kCount, 2, 0.01);
      std::vector<float> second = numbers(kCount, 3, 1e-4);
      for (float& x : second) x = std::abs(x);
      const std::vector<float> gradient = numbers(kCount, 1, 0.3);
      const DeviceArray<float> v(value), g(gradient), m(first), s(second);
      const DeviceArray<AdamWRun> device_runs(runs);
      const DeviceArray<float> d(std::vector<float>{divisor});
      AdamW p{.value = value.data(),
              .gradient = gradient.data(),
              .first = first.data(),
              .second = second.data(),
              .runs = runs.data(),
              .run_count = static_cast<int64_t>(runs.size()),
              .divisor = divisor > 0 ? &divisor : nullptr,
              .rate = 1e-2,
              .beta1 = 0.9,
              .beta2 = 0.98,
              .eps = 1e-8,
              .step = step};
      adamw_ref(p);
      p.value = v.data(), p.gradient = g.data(), p.first = m.data(), p.second = s.data();
      p.runs = device_runs.data();
      p.divisor = divisor > 0 ? d.data() : nullptr;
      adamw_cuda(p);
      gpu::expect_success(cudaDeviceSynchronize());
      const auto got_v = v.host(), got_m = m.host(), got_s = s.host();
      const double eps = 0x1p-24;
      for (size_t i = 0; i < kCount; ++i) {
        // Each moment: a handful of roundings of terms of its own size; the value's step: a dozen,
        // and m may be what is left of two terms of 0.1.
        EXPECT_NEAR(got_m[i], first[i], 8 * eps * 0.05) << i;
        EXPECT_NEAR(got_s[i], second[i], 8 * eps * (std::abs(second[i]) + 1e-12)) << i;
        const double root = std::sqrt(std::abs(second[i])) + 1e-8;
        EXPECT_NEAR(got_v[i], value[i],
                    eps * (4 * std::abs(value[i]) + 16 * 1e-2 * 10 * (0.05 / root)))
            << i;
      }
    }
}

}  // namespace
}  // namespace tautline::kernels
