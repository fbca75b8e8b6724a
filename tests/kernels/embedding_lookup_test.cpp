#include "tautline/kernels/embedding_lookup.h"

#include <cmath>

#include <gtest/gtest.h>

#include "kernels/embedding_cases.h"

namespace tautline::kernels {
namespace {

using testing::half_ulp;
using testing::kElements;
using testing::normal_values;
using testing::value_at;

std::vector<uint8_t> poison(int64_t count, Element element) {
  return std::vector<uint8_t>(static_cast<size_t>(count * element_bytes(element)), 0xFF);
}

TEST(Lookup, EqualsTheReferenceBitForBitForEveryPairOfTypes) {
  for (const auto& c : testing::row_cases()) {
    if (c.table_rows > 10000) continue;
    for (const Element table_type : kElements)
      for (const Element out_type : kElements) {
        const auto table = normal_values(table_type, c.table_rows * c.width, 1);
        const auto count = static_cast<int64_t>(c.rows.size());
        auto got = poison(count * c.width, out_type), want = got;
        Lookup p{table.data(),  table_type, c.table_rows, c.width,
                 c.rows.data(), count,      got.data(),   out_type};
        lookup_cpu(p, 0, count / 3);  // two ranges: what the threads of ops/ do
        lookup_cpu(p, count / 3, count);
        p.out = want.data();
        lookup_ref(p);
        EXPECT_EQ(got, want) << c.name;
      }
  }
}

// A sum of n values in FP32 errs by at most n eps of the sum of magnitudes, then rounds to its
// type.
TEST(PooledLookup, SumsAndMeansWithEmptyBagsAndNoneIds) {
  for (const auto& c : testing::row_cases()) {
    if (c.table_rows > 10000) continue;
    const auto count = static_cast<int64_t>(c.rows.size());
    std::vector<int64_t> offsets = {0, 0};  // begins with an empty bag
    while (offsets.back() < count)
      offsets.push_back(std::min(count, offsets.back() + (offsets.back() * 7 + 3) % 50));
    offsets.push_back(count);  // ends with an empty bag
    const auto bags = static_cast<int64_t>(offsets.size()) - 1;
    for (const Element type : kElements)
      for (const bool mean : {false, true}) {
        const auto table = normal_values(type, c.table_rows * c.width, 2);
        auto got = poison(bags * c.width, type), want = got;
        PooledLookup p{
            {table.data(), type, c.table_rows, c.width, c.rows.data(), count, got.data(), type},
            offsets.data(),
            bags,
            mean};
        pooled_lookup_cpu(p, 0, bags);
        p.lookup.out = want.data();
        pooled_lookup_ref(p);
        for (int64_t b = 0; b < bags; ++b)
          for (int64_t i = 0; i < c.width; ++i) {
            double magnitude = 0;
            for (int64_t n = offsets[b]; n < offsets[b + 1]; ++n)
              if (c.rows[n] >= 0)
                magnitude += std::fabs(value_at(table, type, c.rows[n] * c.width + i));
            const auto n = static_cast<double>(offsets[b + 1] - offsets[b]);
            const double reference = value_at(want, type, b * c.width + i);
            // The reference is rounded to the type too: twice half a unit.
            const double bound = (n + 1) * 0x1p-24 * magnitude + 2 * half_ulp(type) * magnitude;
            EXPECT_NEAR(value_at(got, type, b * c.width + i), reference, bound) << c.name;
          }
      }
  }
}

TEST(PooledGradients, GiveEachIdItsBagsGradient) {
  const std::vector<int64_t> offsets = {0, 0, 3, 4, 4, 9};
  const int64_t bags = 5, width = 300, count = 9;
  for (const Element type : kElements)
    for (const bool mean : {false, true}) {
      const auto gradients = normal_values(type, bags * width, 3);
      auto out = poison(count * width, type);
      const PooledGradients p{
          gradients.data(), out.data(), type, offsets.data(), bags, width, mean};
      pooled_gradients_cpu(p, 0, 2);
      pooled_gradients_cpu(p, 2, bags);
      for (int64_t b = 0; b < bags; ++b)
        for (int64_t n = offsets[b]; n < offsets[b + 1]; ++n)
          for (int64_t c = 0; c < width; ++c) {
            const double length = mean ? static_cast<double>(offsets[b + 1] - offsets[b]) : 1.0;
            const double want = value_at(gradients, type, b * width + c) / length;
            EXPECT_NEAR(value_at(out, type, n * width + c), want,
                        std::fabs(want) * (half_ulp(type) + 0x1p-23) + 0x1p-25);
          }
    }
}

TEST(FindBadRow, AcceptsNoneAndTheLastRowOnly) {
  const std::vector<int64_t> good = {-1, 0, 9}, low = {0, -2}, high = {0, 1, 10};
  EXPECT_EQ(find_bad_row(good.data(), 3, 10), -1);
  EXPECT_EQ(find_bad_row(low.data(), 2, 10), 1);
  EXPECT_EQ(find_bad_row(high.data(), 3, 10), 2);
  EXPECT_EQ(find_bad_row(high.data(), 0, 10), -1);
}

std::vector<float> initial(int64_t rows, int64_t width, uint64_t seed, uint32_t index,
                           int64_t first, int64_t stride) {
  std::vector<float> table(static_cast<size_t>(rows * width));
  const InitRows p{table.data(), Element::kFloat32, rows, width, seed, index, first, stride, 1.0f};
  init_rows_cpu(p, 0, rows);
  return table;
}

TEST(InitRows, AShardHoldsTheRowsOfTheWhole) {
  const int64_t rows = 103, width = 10, ranks = 4;
  const auto whole = initial(rows, width, 5, 2, 0, 1);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t held = (rows - rank + ranks - 1) / ranks;
    const auto shard = initial(held, width, 5, 2, rank, ranks);
    for (int64_t r = 0; r < held; ++r)
      for (int64_t c = 0; c < width; ++c)
        EXPECT_EQ(shard[r * width + c], whole[(rank + r * ranks) * width + c]);
  }
  EXPECT_NE(whole, initial(rows, width, 6, 2, 0, 1));  // another seed
  EXPECT_NE(whole, initial(rows, width, 5, 3, 0, 1));  // another table
}

// n = 2^20 values: mean within 5 / sqrt(n), variance within 5 sqrt(2 / n), kurtosis within
// 5 sqrt(24 / n), the share beyond 3 within 5 standard deviations, and no lag correlation.
TEST(InitRows, AreStandardNormal) {
  const auto values = initial(1 << 14, 64, 11, 0, 0, 1);
  const auto n = static_cast<double>(values.size());
  double sum = 0, square = 0, fourth = 0, beyond = 0, lag = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = values[i];
    sum += x;
    square += x * x;
    fourth += x * x * x * x;
    beyond += std::fabs(x) > 3.0;
    if (i > 0) lag += x * values[i - 1];
  }
  EXPECT_LT(std::fabs(sum / n), 5 / std::sqrt(n));
  EXPECT_LT(std::fabs(square / n - 1), 5 * std::sqrt(2 / n));
  EXPECT_LT(std::fabs(fourth / n - 3), 5 * std::sqrt(96 / n));
  const double tail = 0.0026997960632601866;
  EXPECT_LT(std::fabs(beyond / n - tail), 5 * std::sqrt(tail / n));
  EXPECT_LT(std::fabs(lag / n), 5 / std::sqrt(n));
}

// Against libm: the bounds that normal.h states.
TEST(NormalPair, FollowsBoxMuller) {
  Random random(1, RandomUse::kSynthetic);
  for (int i = 0; i < 100000; ++i) {
    const uint32_t a = i < 2 ? (i == 0 ? 0u : ~0u) : random.next32(), b = random.next32();
    float x, y;
    normal_pair(a, b, &x, &y);
    const double u = (2.0 * (a >> 9) + 1) * 0x1p-24;
    const double angle = (static_cast<double>(b >> 7) + 0.5) * 0x1p-25 * 2 * M_PI - M_PI / 4;
    const double radius = std::sqrt(-2 * std::log(u));
    EXPECT_NEAR(x, radius * std::cos(angle), radius * 5e-7);
    EXPECT_NEAR(y, radius * std::sin(angle), radius * 5e-7);
  }
}

}  // namespace
}  // namespace tautline::kernels
