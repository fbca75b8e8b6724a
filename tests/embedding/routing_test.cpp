#include "tautline/embedding/routing.h"

#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "tautline/base/random.h"
#include "tautline/embedding/hash.h"

namespace tautline::embedding {
namespace {

std::vector<int64_t> values_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

at::Tensor random_rows(int64_t n, int64_t rows, uint64_t seed) {
  Random random(seed, RandomUse::kSynthetic);
  std::vector<int64_t> values;
  for (int64_t i = 0; i < n; ++i)
    values.push_back(static_cast<int64_t>(random.below(static_cast<uint64_t>(rows))));
  return at::tensor(values, at::kLong);
}

Placement placement(Sharding sharding, int64_t rows, int world) {
  return {sharding, rows, world, sharding == Sharding::kTableWise ? world - 1 : 0};
}

TEST(Placement, EveryRowLiesOnOneRankAndComesBack) {
  for (const Sharding sharding : {Sharding::kRowWise, Sharding::kTableWise})
    for (const int world : {1, 2, 3, 4})
      for (const int64_t rows : {1, 2, 3, 7, 8, 9}) {
        const Placement place = placement(sharding, rows, world);
        int64_t total = 0;
        for (int rank = 0; rank < world; ++rank) {
          total += place.held(rank);
          EXPECT_LE(place.held(rank), place.span());
          for (int64_t l = 0; l < place.held(rank); ++l) {
            const int64_t row = place.first(rank) + l * place.stride();
            EXPECT_EQ(place.holder(row), rank);
            EXPECT_EQ(place.local(row), l);
          }
        }
        EXPECT_EQ(total, rows);
      }
}

// What groups must satisfy, spelled out on plain vectors.
void expect_right(const Groups& groups, const at::Tensor& rows, const Placement& place,
                  bool deduplicate) {
  const auto asked = values_of(rows), local = values_of(groups.local);
  const auto inverse = values_of(groups.inverse), counts = values_of(groups.counts);
  int64_t u = 0;
  std::vector<int64_t> holder;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    u += counts[rank];
    holder.insert(holder.end(), static_cast<size_t>(counts[rank]), static_cast<int64_t>(rank));
  }
  ASSERT_LE(u, rows.numel());
  if (!deduplicate) {
    EXPECT_EQ(u, rows.numel());
  }
  std::vector<int> used(static_cast<size_t>(u), 0);
  for (size_t i = 0; i < asked.size(); ++i) {
    const size_t at = static_cast<size_t>(inverse[i]);
    ASSERT_LT(at, static_cast<size_t>(u));
    EXPECT_EQ(local[at], place.local(asked[i]));
    EXPECT_EQ(holder[at], place.holder(asked[i]));
    ++used[at];
  }
  for (size_t at = 0; at < used.size(); ++at) {
    EXPECT_GE(used[at], 1);
    if (!deduplicate) {
      EXPECT_EQ(used[at], 1);
    }
    if (deduplicate && at > 0 && holder[at] == holder[at - 1]) {
      EXPECT_LT(local[at - 1], local[at]);
    }
  }
}

TEST(Routing, BothFormsGroupRightAndAlike) {
  for (const Sharding sharding : {Sharding::kRowWise, Sharding::kTableWise})
    for (const int world : {1, 2, 3, 4})
      for (const int64_t rows : {1, 5, 64, 1000})
        for (const int64_t n : {0, 1, 2, 63, 64, 65, 1000})
          for (const bool deduplicate : {true, false}) {
            const Placement place = placement(sharding, rows, world);
            const at::Tensor asked = random_rows(n, rows, static_cast<uint64_t>(n + rows));
            const Groups cpu = group_by_holder(asked, place, deduplicate);
            const Groups generic = group_by_holder_generic(asked, place, deduplicate);
            expect_right(cpu, asked, place, deduplicate);
            expect_right(generic, asked, place, deduplicate);
            EXPECT_TRUE(at::equal(cpu.counts, generic.counts));
            EXPECT_TRUE(at::equal(cpu.inverse, generic.inverse));
          }
}

TEST(Hash, BothFormsAgreeForAllIds) {
  const at::Tensor ids = at::tensor(
      std::vector<int64_t>{0, 1, 2, -1, INT64_MAX, INT64_MIN, 123456789012345}, at::kLong);
  for (const int64_t ways : {1, 2, 3})
    for (const int64_t rows : {int64_t{1}, int64_t{1000}, int64_t{1} << 40}) {
      const at::Tensor hashed = hash_rows(ids, ways, rows);
      EXPECT_TRUE(at::equal(hashed, hash_rows_generic(ids, ways, rows)));
      EXPECT_GE(hashed.min().item<int64_t>(), 0);
      EXPECT_LT(hashed.max().item<int64_t>(), ways * rows);
    }
}

// Consecutive ids spread evenly: chi-square over 64 cells, 63 degrees of freedom, sd 11.2; five of
// them.
TEST(Hash, SpreadsConsecutiveIdsAndWaysAreIndependent) {
  const int64_t cells = 64, n = 64000;
  std::vector<double> count(cells), together(cells * cells);
  for (int64_t id = 0; id < n; ++id) {
    const int64_t a = hash_row(id, 0, cells), b = hash_row(id, 1, cells);
    ++count[static_cast<size_t>(a)];
    ++together[static_cast<size_t>(a * cells + b)];
  }
  const auto chi = [](const std::vector<double>& counts, double expected) {
    double sum = 0;
    for (const double c : counts) sum += (c - expected) * (c - expected) / expected;
    return sum;
  };
  EXPECT_LT(chi(count, 1000), 63 + 5 * 11.3);
  EXPECT_LT(chi(together, 15.625), 4095 + 5 * 90.5);
}

// A checkpoint's rows mean the same ids for ever: values from a separate implementation in Python.
TEST(Hash, KnownAnswers) {
  EXPECT_EQ(hash_row(0, 0, 1000003), 237273);
  EXPECT_EQ(hash_row(1, 0, 1000003), 331183);
  EXPECT_EQ(hash_row(-1, 1, 1000003), 625176);
  EXPECT_EQ(hash_row(123456789012345, 2, 1000003), 32797);
}

}  // namespace
}  // namespace tautline::embedding
