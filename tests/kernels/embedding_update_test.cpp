#include "tautline/kernels/embedding_update.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "kernels/embedding_cases.h"

namespace tautline::kernels {
namespace {

using testing::half_ulp;
using testing::kElements;
using testing::normal_values;
using testing::RowCase;
using testing::value_at;

struct Runs {
  std::vector<int64_t> order, rows, starts;
  RowRuns view;
};

Runs sorted(const RowCase& c) {
  const size_t n = c.rows.size();
  Runs runs{std::vector<int64_t>(n), std::vector<int64_t>(n), std::vector<int64_t>(n + 1), {}};
  const int64_t distinct = sort_rows_cpu(c.rows.data(), static_cast<int64_t>(n), c.table_rows,
                                         runs.order.data(), runs.rows.data(), runs.starts.data());
  runs.view = {runs.order.data(), runs.rows.data(), runs.starts.data(), distinct};
  return runs;
}

TEST(SortRows, GivesDistinctRowsAscendingAndPositionsInOrder) {
  for (const auto& c : testing::row_cases()) {
    std::map<int64_t, std::vector<int64_t>> want;
    for (size_t n = 0; n < c.rows.size(); ++n)
      if (c.rows[n] >= 0) want[c.rows[n]].push_back(static_cast<int64_t>(n));
    const Runs runs = sorted(c);
    ASSERT_EQ(runs.view.count, static_cast<int64_t>(want.size())) << c.name;
    int64_t u = 0;
    for (const auto& [row, positions] : want) {
      EXPECT_EQ(runs.rows[u], row);
      const std::vector<int64_t> got(runs.order.begin() + runs.starts[u],
                                     runs.order.begin() + runs.starts[u + 1]);
      EXPECT_EQ(got, positions) << c.name;
      ++u;
    }
  }
}

// FP32 sums in any order: |error| <= (n - 1) eps sum |g|.
TEST(SumRows, StaysWithinTheBoundOfFp32Sums) {
  for (const auto& c : testing::row_cases())
    for (const Element type : kElements) {
      const auto count = static_cast<int64_t>(c.rows.size());
      const auto gradients = normal_values(type, count * c.width, 4);
      const RowGradients g{c.rows.data(), gradients.data(), type, count, c.width, c.table_rows};
      const Runs runs = sorted(c);
      std::vector<float> sums(static_cast<size_t>(runs.view.count * c.width), NAN);
      std::vector<double> want(sums.size());
      sum_rows_cpu(g, runs.view, sums.data(), 0, runs.view.count / 2);
      sum_rows_cpu(g, runs.view, sums.data(), runs.view.count / 2, runs.view.count);
      sum_rows_ref(g, runs.view, want.data());
      for (int64_t u = 0; u < runs.view.count; ++u)
        for (int64_t i = 0; i < c.width; ++i) {
          double magnitude = 0;
          for (int64_t k = runs.starts[u]; k < runs.starts[u + 1]; ++k)
            magnitude += std::fabs(value_at(gradients, type, runs.order[k] * c.width + i));
          const double n = static_cast<double>(runs.starts[u + 1] - runs.starts[u]);
          EXPECT_NEAR(sums[u * c.width + i], want[u * c.width + i],
                      std::max(0.0, n - 1) * 0x1p-24 * magnitude)
              << c.name;
        }
    }
}

// The sum of a row must not depend on the other rows of the batch: that is what makes one rank and
// four agree.
TEST(SumRows, DependsOnTheRowsOwnGradientsOnly) {
  const int64_t width = 48, n = 3000;
  const auto gradients = normal_values(Element::kFloat32, n * width, 5);
  const auto* values = reinterpret_cast<const float*>(gradients.data());
  RowCase mixed{"", 1000, width, testing::zipf_rows(n, 1000, 9)};
  const Runs runs = sorted(mixed);
  std::vector<float> sums(static_cast<size_t>(runs.view.count * width));
  const RowGradients g{mixed.rows.data(), values, Element::kFloat32, n, width, 1000};
  sum_rows_cpu(g, runs.view, sums.data(), 0, runs.view.count);
  for (const int64_t u : {int64_t{0}, int64_t{1}, runs.view.count - 1}) {
    std::vector<float> own;
    for (int64_t k = runs.starts[u]; k < runs.starts[u + 1]; ++k)
      own.insert(own.end(), values + runs.order[k] * width, values + (runs.order[k] + 1) * width);
    RowCase alone{"", 1, width, std::vector<int64_t>(own.size() / width, 0)};
    const Runs single = sorted(alone);
    std::vector<float> sum(width);
    const RowGradients one{alone.rows.data(),
                           own.data(),
                           Element::kFloat32,
                           static_cast<int64_t>(alone.rows.size()),
                           width,
                           1};
    sum_rows_cpu(one, single.view, sum.data(), 0, 1);
    EXPECT_TRUE(std::equal(sum.begin(), sum.end(), sums.begin() + u * width));
  }
}

/// A table with all the state that any optimiser needs.
struct Table {
  std::vector<uint8_t> values;
  std::vector<float> state, moment1, moment2;
  bool operator==(const Table&) const = default;
};

Table make_table(const RowCase& c, Element type) {
  Table t{normal_values(type, c.table_rows * c.width, 6), {}, {}, {}};
  t.state.assign(static_cast<size_t>(c.table_rows), 0.25f);
  t.moment1.assign(static_cast<size_t>(c.table_rows * c.width), 0.125f);
  t.moment2.assign(t.moment1.size(), 0.5f);
  return t;
}

RowUpdate update_of(Table& t, const RowCase& c, Element type, RowUpdate::Kind kind) {
  RowUpdate p;
  p.kind = kind;
  p.table = t.values.data();
  p.table_type = type;
  p.table_rows = c.table_rows;
  p.width = c.width;
  p.state = t.state.data();
  p.moment1 = t.moment1.data();
  p.moment2 = t.moment2.data();
  p.lr = 0.05f;
  p.eps = 1e-4f;
  p.decay = 0.01f;
  p.scale = 0.5f;
  p.beta1 = 0.9f;
  p.beta2 = 0.98f;
  p.step = 3;
  return p;
}

constexpr RowUpdate::Kind kKinds[] = {RowUpdate::Kind::kSgd, RowUpdate::Kind::kRowwiseAdagrad,
                                      RowUpdate::Kind::kAdam};

// About 20 FP32 roundings and the mean over E of squares: 64 eps relative of the terms is ample for
// a right formula and far too little for a wrong one; then one rounding to the table's type.
TEST(ApplyRows, FollowsTheFormulasAndLeavesOtherRowsAlone) {
  for (const auto& c : testing::row_cases()) {
    if (c.table_rows > 10000) continue;
    for (const Element type : kElements)
      for (const auto kind : kKinds) {
        const Runs runs = sorted(c);
        const auto sum_bytes = normal_values(Element::kFloat32, runs.view.count * c.width, 8);
        const auto* sums = reinterpret_cast<const float*>(sum_bytes.data());
        Table got = make_table(c, type), want = got;
        const Table before = got;
        apply_rows_cpu(update_of(got, c, type, kind), runs.rows.data(), sums, 0, runs.view.count);
        const RowUpdate reference = update_of(want, c, type, kind);
        for (int64_t u = 0; u < runs.view.count; ++u) {
          const std::vector<double> sum(sums + u * c.width, sums + (u + 1) * c.width);
          apply_row_ref(reference, runs.rows[u], sum.data());
        }
        const double eps = 64 * 0x1p-24;
        for (int64_t i = 0; i < c.table_rows * c.width; ++i) {
          const double w = value_at(want.values, type, i);
          EXPECT_NEAR(value_at(got.values, type, i), w,
                      2 * half_ulp(type) * std::fabs(w) + eps * (std::fabs(w) + 0.5))
              << c.name;
          EXPECT_NEAR(got.moment1[i], want.moment1[i], eps * 2);
          EXPECT_NEAR(got.moment2[i], want.moment2[i], eps * 2);
        }
        for (int64_t r = 0; r < c.table_rows; ++r) {
          EXPECT_NEAR(got.state[r], want.state[r], eps * want.state[r]);
          if (std::binary_search(runs.rows.begin(), runs.rows.begin() + runs.view.count, r))
            continue;
          for (int64_t i = r * c.width; i < (r + 1) * c.width; ++i) {
            EXPECT_EQ(value_at(got.values, type, i), value_at(before.values, type, i));
            EXPECT_EQ(got.moment1[i], before.moment1[i]);
          }
        }
      }
  }
}

TEST(UpdateRows, EqualsSumThenApplyBitForBit) {
  for (const auto& c : testing::row_cases()) {
    if (c.table_rows > 10000) continue;
    const auto count = static_cast<int64_t>(c.rows.size());
    for (const Element type : kElements)
      for (const auto kind : kKinds) {
        const auto gradients = normal_values(type, count * c.width, 10);
        const RowGradients g{c.rows.data(), gradients.data(), type, count, c.width, c.table_rows};
        const Runs runs = sorted(c);
        std::vector<float> sums(static_cast<size_t>(runs.view.count * c.width));
        sum_rows_cpu(g, runs.view, sums.data(), 0, runs.view.count);
        Table apart = make_table(c, type), fused = apart;
        apply_rows_cpu(update_of(apart, c, type, kind), runs.rows.data(), sums.data(), 0,
                       runs.view.count);
        update_rows_cpu(update_of(fused, c, type, kind), g, runs.view, 0, runs.view.count);
        EXPECT_TRUE(apart == fused) << c.name;
      }
  }
}

}  // namespace
}  // namespace tautline::kernels
