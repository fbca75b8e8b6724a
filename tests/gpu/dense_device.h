// What the tests of the dense block's CUDA kernels share: inputs of a type on the device and as the
// reference sees them, shapes, and the bound that a result is held to. Inputs are rounded to the type
// first, so the reference sees the very same values. A result may differ by its own rounding (half a
// unit in the last place) and by the bound of FP32 sums, which each test derives.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "kernels/embedding_cases.h"

namespace tautline::kernels::testing {

using gpu::DeviceArray;

inline constexpr double kEps = 0x1p-24;

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

inline auto flat(double value) {
  return [value](size_t) { return value; };
}

struct Shape {
  int64_t rows, width;
};
inline std::string text(const Shape& s, Element e) {
  return std::to_string(s.rows) + " x " + std::to_string(s.width) + " " + name_of(e);
}
inline std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const int64_t width : {1, 7, 8, 64, 100, 256, 264, 512, 1000, 1024, 2048, 2056, 4100})
    for (const int64_t rows : {0, 1, 9, 70}) all.push_back({rows, width});
  all.push_back({5000, 64});  // more rows than one pass of the grid
  return all;
}

// A lane adds width / 32 values in turn, then a tree: (width / 32 + 16) eps of the terms, which are
// below 5 sigma each for the values here.
inline double row_bound(int64_t width) { return (static_cast<double>(width) / 32 + 16) * kEps; }

}  // namespace tautline::kernels::testing
