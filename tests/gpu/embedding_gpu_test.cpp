// The CUDA kernels of the embedding against the CPU kernels, which tests/kernels holds against the
// references: data movement, sums and initial values bit for bit, optimisers to FP32 rounding.
#include <algorithm>
#include <cmath>

#include "tautline/kernels/embedding_lookup.h"
#include "tautline/kernels/embedding_update.h"

#include "gpu/device.h"
#include "kernels/embedding_cases.h"

namespace tautline::kernels {
namespace {

using gpu::DeviceArray;
using testing::half_ulp;
using testing::kElements;
using testing::normal_values;
using testing::RowCase;
using testing::value_at;

std::vector<RowCase> cases() {
  auto all = testing::row_cases();
  std::erase_if(all, [](const RowCase& c) { return c.table_rows > 100000; });
  // Runs of more than kSumStrands pieces, and neighbouring rows that all have long runs.
  RowCase heavy{"heavy", 300, 64, testing::zipf_rows(40000, 300, 12)};
  for (size_t n = 0; n < heavy.rows.size(); n += 3) heavy.rows[n] = 299;
  for (const int64_t width : {16, 100, 128, 256, 512}) {
    heavy.width = width;
    all.push_back(heavy);
  }
  RowCase sparse{"sparse", 40000, 128, {}};
  Random random(5, RandomUse::kSynthetic);
  for (int n = 0; n < 30000; ++n) sparse.rows.push_back(static_cast<int64_t>(random.below(40000)));
  all.push_back(sparse);
  return all;
}

int64_t count_of(const RowCase& c) { return static_cast<int64_t>(c.rows.size()); }

TEST(LookupGpu, EqualsTheCpuBitForBit) {
  for (const auto& c : cases())
    for (const Element table_type : kElements)
      for (const Element out_type : kElements) {
        const auto values = normal_values(table_type, c.table_rows * c.width, 1);
        std::vector<uint8_t> want(
            static_cast<size_t>(count_of(c) * c.width * element_bytes(out_type)));
        Lookup p{values.data(), table_type,  c.table_rows, c.width,
                 c.rows.data(), count_of(c), want.data(),  out_type};
        lookup_cpu(p, 0, p.count);
        const DeviceArray<uint8_t> table(values), out(want.size());
        const DeviceArray<int64_t> rows(c.rows);
        p.table = table.data();
        p.rows = rows.data();
        p.out = out.data();
        lookup_cuda(p);
        EXPECT_TRUE(out.host() == want)
            << c.name << testing::name_of(table_type) << testing::name_of(out_type);
      }
}

TEST(PooledLookupGpu, EqualsTheCpuBitForBitAndSoDoesItsGradient) {
  for (const auto& c : cases())
    for (const Element type : kElements) {
      std::vector<int64_t> bag_offsets = {0, 0};
      while (bag_offsets.back() < count_of(c))
        bag_offsets.push_back(
            std::min(count_of(c), bag_offsets.back() + (bag_offsets.back() * 7 + 3) % 50));
      const int64_t bags = static_cast<int64_t>(bag_offsets.size()) - 1;
      const auto values = normal_values(type, c.table_rows * c.width, 2);
      const size_t row_bytes = static_cast<size_t>(c.width * element_bytes(type));
      std::vector<uint8_t> want(static_cast<size_t>(bags) * row_bytes),
          spread(static_cast<size_t>(count_of(c)) * row_bytes);
      PooledLookup p{{values.data(), type, c.table_rows, c.width, c.rows.data(), count_of(c),
                      want.data(), type},
                     bag_offsets.data(),
                     bags,
                     true};
      pooled_lookup_cpu(p, 0, bags);
      PooledGradients g{want.data(), spread.data(), type, bag_offsets.data(), bags, c.width, true};
      pooled_gradients_cpu(g, 0, bags);
      const DeviceArray<uint8_t> table(values), out(want.size()), grown(spread.size());
      const DeviceArray<int64_t> rows(c.rows), offsets(bag_offsets);
      p.lookup.table = table.data();
      p.lookup.rows = rows.data();
      p.lookup.out = out.data();
      p.offsets = g.offsets = offsets.data();
      g.gradients = out.data();
      g.out = grown.data();
      pooled_lookup_cuda(p);
      pooled_gradients_cuda(g);
      EXPECT_TRUE(out.host() == want) << c.name << testing::name_of(type);
      EXPECT_TRUE(grown.host() == spread) << c.name << testing::name_of(type);
    }
}

TEST(InitRowsGpu, EqualsTheCpuBitForBit) {
  for (const Element type : kElements)
    for (const int64_t width : {1, 6, 64}) {
      const int64_t rows = 5000;
      std::vector<uint8_t> want(static_cast<size_t>(rows * width * element_bytes(type)));
      InitRows p{want.data(), type, rows, width, 9, 3, (int64_t{1} << 33) + 1, 4, 0.02f};
      init_rows_cpu(p, 0, rows);
      const DeviceArray<uint8_t> table(want.size());
      p.table = table.data();
      init_rows_cuda(p);
      EXPECT_TRUE(table.host() == want) << testing::name_of(type) << width;
    }
}

/// What coalesce gives on the CPU.
struct Sums {
  std::vector<int64_t> order, rows, starts;
  std::vector<float> sums;
};

Sums coalesce_cpu(const RowCase& c, const RowGradients& g) {
  const size_t n = c.rows.size();
  Sums s{std::vector<int64_t>(n), std::vector<int64_t>(n), std::vector<int64_t>(n + 1), {}};
  const int64_t distinct = sort_rows_cpu(c.rows.data(), count_of(c), c.table_rows, s.order.data(),
                                         s.rows.data(), s.starts.data());
  s.rows.resize(static_cast<size_t>(distinct));
  s.sums.resize(static_cast<size_t>(distinct * c.width));
  sum_rows_cpu(g, {s.order.data(), s.rows.data(), s.starts.data(), distinct}, s.sums.data(), 0,
               distinct);
  return s;
}

DeviceArray<uint8_t> workspace_for(const RowCase& c) {
  return DeviceArray<uint8_t>(update_workspace_bytes(count_of(c), c.width, c.table_rows));
}

TEST(CoalesceGpu, EqualsTheCpuBitForBit) {
  for (const auto& c : cases())
    for (const Element type : kElements) {
      const auto values = normal_values(type, count_of(c) * c.width, 4);
      RowGradients g{c.rows.data(), values.data(), type, count_of(c), c.width, c.table_rows};
      const Sums want = coalesce_cpu(c, g);
      const DeviceArray<uint8_t> gradients(values), workspace = workspace_for(c);
      const DeviceArray<int64_t> ids(c.rows), rows(c.rows.size()), distinct(1);
      const DeviceArray<float> sums(c.rows.size() * static_cast<size_t>(c.width));
      g.rows = ids.data();
      g.gradients = gradients.data();
      for (int run = 0; run < 2; ++run) {  // twice: the workspace need not be clean
        coalesce_cuda(g, rows.data(), sums.data(), distinct.data(), workspace.data());
        ASSERT_EQ(distinct.host()[0], static_cast<int64_t>(want.rows.size())) << c.name;
        auto got_rows = rows.host();
        got_rows.resize(want.rows.size());
        EXPECT_TRUE(got_rows == want.rows) << c.name;
        auto got = sums.host();
        got.resize(want.sums.size());
        EXPECT_TRUE(got == want.sums) << c.name << testing::name_of(type);
      }
    }
}

/// A table with its state on the device.
struct DeviceTable {
  DeviceArray<uint8_t> values;
  DeviceArray<float> state, moment1, moment2;
};

struct HostTable {
  std::vector<uint8_t> values;
  std::vector<float> state, moment1, moment2;
  bool operator==(const HostTable&) const = default;
  DeviceTable device() const {
    return {DeviceArray<uint8_t>(values), DeviceArray<float>(state), DeviceArray<float>(moment1),
            DeviceArray<float>(moment2)};
  }
};

HostTable make_table(const RowCase& c, Element type) {
  const auto rows = static_cast<size_t>(c.table_rows), width = static_cast<size_t>(c.width);
  return {normal_values(type, c.table_rows * c.width, 6), std::vector<float>(rows, 0.25f),
          std::vector<float>(rows * width, 0.125f), std::vector<float>(rows * width, 0.5f)};
}

HostTable host_of(const DeviceTable& t) {
  return {t.values.host(), t.state.host(), t.moment1.host(), t.moment2.host()};
}

template <class T>
RowUpdate update_of(T& t, const RowCase& c, Element type, RowUpdate::Kind kind) {
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

void expect_near(const HostTable& got, const HostTable& want, Element type,
                 const std::string& name) {
  const double eps = 64 * 0x1p-24;  // tests/kernels: the bound of one implementation, twice
  const auto count = static_cast<int64_t>(want.moment1.size());
  int64_t bad = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double w = value_at(want.values, type, i), g = value_at(got.values, type, i);
    bad +=
        !(std::fabs(g - w) <= 2 * half_ulp(type) * std::fabs(w) + 2 * eps * (std::fabs(w) + 0.5));
    bad += !(std::fabs(got.moment1[i] - want.moment1[i]) <= eps * (2 + std::fabs(want.moment1[i])));
    bad += !(std::fabs(got.moment2[i] - want.moment2[i]) <= eps * (2 + std::fabs(want.moment2[i])));
  }
  for (size_t r = 0; r < want.state.size(); ++r)
    bad += !(std::fabs(got.state[r] - want.state[r]) <= eps * want.state[r]);
  EXPECT_EQ(bad, 0) << name;
}

TEST(UpdateGpu, FollowsTheCpuAndFusedEqualsApartBitForBit) {
  for (const auto& c : cases())
    for (const Element type : kElements)
      for (const auto kind : kKinds) {
        const Element gradient_type = count_of(c) % 2 == 0 ? type : Element::kFloat32;
        const auto values = normal_values(gradient_type, count_of(c) * c.width, 10);
        RowGradients g{c.rows.data(), values.data(), gradient_type,
                       count_of(c),   c.width,       c.table_rows};
        const Sums want_sums = coalesce_cpu(c, g);
        HostTable want = make_table(c, type);
        const DeviceTable apart = want.device(), fused = want.device();
        apply_rows_cpu(update_of(want, c, type, kind), want_sums.rows.data(), want_sums.sums.data(),
                       0, static_cast<int64_t>(want_sums.rows.size()));
        const DeviceArray<uint8_t> gradients(values), workspace = workspace_for(c);
        const DeviceArray<int64_t> ids(c.rows), rows(c.rows.size()), distinct(1);
        const DeviceArray<float> sums(c.rows.size() * static_cast<size_t>(c.width));
        g.rows = ids.data();
        g.gradients = gradients.data();
        coalesce_cuda(g, rows.data(), sums.data(), distinct.data(), workspace.data());
        apply_rows_cuda(update_of(apart, c, type, kind), rows.data(), sums.data(), count_of(c),
                        distinct.data());
        const HostTable got = host_of(apart);
        const std::string name = c.name + " " + testing::name_of(type);
        expect_near(got, want, type, name);
        if (kind == RowUpdate::Kind::kAdam) continue;
        update_rows_cuda(update_of(fused, c, type, kind), g, workspace.data());
        EXPECT_TRUE(host_of(fused) == got) << name;
      }
}

TEST(LookupGpuDeathTest, AnIdBeyondTheTableEndsTheProgramWithItsNumber) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto look_up = [] {
    const DeviceArray<float> table(6 * 4), out(2 * 4);
    const DeviceArray<int64_t> rows(std::vector<int64_t>{0, 6});
    lookup_cuda({table.data(), Element::kFloat32, 6, 4, rows.data(), 2, out.data()});
    const cudaError_t status = cudaDeviceSynchronize();
    std::fflush(stdout);
    if (status != cudaSuccess) std::abort();
  };
  EXPECT_DEATH(look_up(), "");
}

}  // namespace
}  // namespace tautline::kernels
