// Comparing a kernel's output with its reference, row by row, against a derived tolerance.
//
// A result made of K rounded FP32 operations on terms of size up to m differs from the exact one by
// at most K eps m (Higham 2002, section 3.1). A row's tolerance is units * eps * m: `units` is the
// K that the test derives, m the largest |reference| of the row plus `floor`, the size of the terms
// that cancel.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tautline/base/random.h"

namespace tautline::kernels::testing {

inline std::vector<float> normals(int64_t count, uint64_t seed, float deviation = 1.0f) {
  Random random(seed, RandomUse::kSynthetic);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = deviation * static_cast<float>(random.normal());
  return values;
}

/// Largest share of the tolerance that any element used; NaN counts as infinite.
inline double share_used(const std::vector<float>& got, const std::vector<float>& reference,
                         int64_t rows, double units, double floor = 0.0) {
  if (got.size() != reference.size()) return INFINITY;
  double worst = 0;
  const size_t width = rows > 0 ? reference.size() / static_cast<size_t>(rows) : 0;
  for (size_t first = 0; width > 0 && first < reference.size(); first += width) {
    double size = floor;
    for (size_t i = first; i < first + width; ++i)
      size = std::max(size, floor + std::abs(double{reference[i]}));
    for (size_t i = first; i < first + width; ++i) {
      if (got[i] == reference[i]) continue;
      const double error = std::abs(double{got[i]} - reference[i]);
      const double share = error / (units * 0x1p-24 * size);
      worst = std::isfinite(share) ? std::max(worst, share) : INFINITY;
    }
  }
  return worst;
}

/// Collects the worst share over many cases and prints it once.
class Shares {
 public:
  explicit Shares(std::string what) : what_(std::move(what)) {}
  ~Shares() { std::cout << what_ << ": " << std::lround(100 * worst_) << " % of the tolerance\n"; }
  void add(double share) { worst_ = std::max(worst_, share); }

 private:
  std::string what_;
  double worst_ = 0;
};

#define EXPECT_CLOSE(shares, got, reference, rows, units, floor)                      \
  do {                                                                                \
    const double share =                                                              \
        ::tautline::kernels::testing::share_used(got, reference, rows, units, floor); \
    shares.add(share);                                                                \
    EXPECT_LT(share, 1.0) << #got;                                                    \
  } while (false)

/// Runs `body(name, use_v4)` for both instruction sets where this machine has them.
template <class Body>
void for_each_isa(bool has_v4, Body&& body) {
  body("v3", false);
  if (has_v4) body("v4", true);
}

}  // namespace tautline::kernels::testing
