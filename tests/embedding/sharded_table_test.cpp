// Ranks are threads over Gloo; rows and gradients are small whole numbers, so that every sum is
// exact and "agree" means equal.
#include "tautline/embedding/sharded_table.h"

#include <gmock/gmock.h>
#include <mutex>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "tautline/base/error.h"
#include "tautline/base/random.h"
#include "tautline/comm/threads.h"
#include "tautline/embedding/hash.h"

namespace tautline::embedding {
namespace {

using comm::Communicator;
using comm::run_rank_threads;
using Kind = TableOptimizer::Kind;

struct Case {
  int world = 1;
  Sharding sharding = Sharding::kRowWise;
  bool deduplicate = true;
  int64_t hash_ways = 0;
  Kind optimizer = Kind::kSgd;
};

TableConfig config_of(const Case& c, int64_t rows = 37) {
  TableConfig config;
  config.rows = rows;
  config.dim = 6;
  config.hash_ways = c.hash_ways;
  config.optimizer.kind = c.optimizer;
  config.optimizer.lr = c.optimizer == Kind::kSgd ? 1.0 : 0.125;
  return config;
}

TablePlan plan_of(const Case& c) { return {c.sharding, c.world - 1, ""}; }

ShardedTable make(const Case& c, const Communicator& group, int64_t rows = 37) {
  ShardedTableOptions options;
  options.deduplicate = c.deduplicate;
  return ShardedTable("item", config_of(c, rows), plan_of(c), group, options);
}

// Whole numbers as rows: row r, column k is 8 r + k.
at::Tensor whole_rows(int64_t rows, int64_t width) {
  return at::arange(rows, at::kFloat)
      .mul(8)
      .view({-1, 1})
      .add(at::arange(width, at::kFloat))
      .contiguous();
}

// The ids of a step, the same set for any number of ranks: rank r takes every W-th, and rank 1 none
// in step 2.
struct Ids {
  std::vector<int64_t> all;
  at::Tensor of_rank(int rank, int world) const {
    std::vector<int64_t> mine;
    for (size_t i = 0; i < all.size(); ++i)
      if (static_cast<int>(i % static_cast<size_t>(world)) == rank) mine.push_back(all[i]);
    return at::tensor(mine, at::kLong);
  }
};

Ids skewed_ids(int64_t n, int64_t rows, uint64_t seed) {
  Random random(seed, RandomUse::kSynthetic);
  Ids ids;
  for (int64_t i = 0; i < n; ++i) {
    const double u = random.uniform();
    ids.all.push_back(static_cast<int64_t>(u * u * u * static_cast<double>(rows)));  // often small
  }
  return ids;
}

// The gradient of an id: whole numbers that differ by id and column, so that a mix-up shows.
at::Tensor gradients_of(const at::Tensor& ids, int64_t dim) {
  return ids.remainder(5)
      .sub(2)
      .to(at::kFloat)
      .view({-1, 1})
      .mul(at::arange(1, dim + 1, at::kFloat));
}

void step(ShardedTable& table, const at::Tensor& ids) {
  Route route = table.start_ids(ids);
  table.return_rows(route, table.look_up(route));
  table.apply(table.coalesce(route, gradients_of(ids, table.dim())));
}

// The whole table [R, E'] from the ranks' shares.
at::Tensor gathered(ShardedTable& table, const std::string& kind, std::mutex& mutex,
                    at::Tensor& whole) {
  for (const TableState& state : table.state()) {
    if (state.kind != kind) continue;
    const std::lock_guard lock(mutex);
    if (!whole.defined()) whole = at::zeros({state.global_rows, state.tensor.size(1)});
    for (int64_t l = 0; l < state.tensor.size(0); ++l)
      whole[state.first + l * state.stride].copy_(state.tensor[l]);
  }
  return whole;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int world : {1, 2, 3, 4})
    for (const Sharding sharding :
         {Sharding::kRowWise, Sharding::kTableWise, Sharding::kDataParallel})
      for (const bool deduplicate : {true, false})
        for (const int64_t ways : {0, 2}) all.push_back({world, sharding, deduplicate, ways});
  return all;
}

TEST(ShardedTable, LookUpGivesTheRowsOfTheIds) {
  for (const Case& c : cases())
    run_rank_threads(c.world, [&](Communicator group) {
      ShardedTable table = make(c, group);
      const at::Tensor whole = whole_rows(table.rows(), table.weight().size(1));
      EXPECT_EQ(table.load("weight", whole, 0, 1), table.rows_held());
      for (const int64_t n : {0, 1, 2, 300}) {
        const at::Tensor ids = skewed_ids(n, 37, 3).of_rank(group.rank(), c.world);
        Route route = table.start_ids(ids);
        const at::Tensor values = table.return_rows(route, table.look_up(route));
        const at::Tensor rows = c.hash_ways ? hash_rows(ids, c.hash_ways, 37) : ids;
        EXPECT_TRUE(at::equal(values, whole.index_select(0, rows).view({ids.numel(), 6})))
            << c.world << " ranks, n " << n;
      }
    });
}

TEST(ShardedTable, DuplicatesTravelOnce) {
  run_rank_threads(2, [&](Communicator group) {
    for (const bool deduplicate : {true, false}) {
      ShardedTable table = make({2, Sharding::kRowWise, deduplicate}, group);
      Route route = table.start_ids(at::tensor(std::vector<int64_t>{4, 4, 4, 5}, at::kLong));
      const at::Tensor rows = table.look_up(route);
      // Both ranks ask alike: id 4 lies on rank 0, id 5 on rank 1.
      const int64_t of_4 = deduplicate ? 1 : 3;
      EXPECT_EQ(rows.size(0), group.rank() == 0 ? 2 * of_4 : 2);
      EXPECT_EQ(route.send_splits, (std::vector<int64_t>{of_4, 1}));
    }
  });
}

// Expected: plain loops over all ids of the step.
TEST(ShardedTable, SgdUpdatesAreExactForAnyNumberOfRanks) {
  for (const Case& c : cases()) {
    const Ids ids = skewed_ids(300, 37, 5);
    std::mutex mutex;
    at::Tensor whole;
    run_rank_threads(c.world, [&](Communicator group) {
      ShardedTable table = make(c, group);
      table.load("weight", whole_rows(table.rows(), table.weight().size(1)), 0, 1);
      step(table, ids.of_rank(group.rank(), c.world));
      gathered(table, "weight", mutex, whole);
    });
    at::Tensor expected = whole_rows(whole.size(0), whole.size(1));
    for (const int64_t id : ids.all) {
      const at::Tensor one = at::tensor(std::vector<int64_t>{id}, at::kLong);
      const at::Tensor rows = c.hash_ways ? hash_rows(one, c.hash_ways, 37) : one;
      const at::Tensor gradient = gradients_of(one, 6).view({rows.numel(), -1});
      for (int64_t way = 0; way < rows.numel(); ++way)
        expected[rows[way].item<int64_t>()].sub_(gradient[way]);
    }
    EXPECT_TRUE(at::equal(whole, expected))
        << c.world << " ranks, sharding " << static_cast<int>(c.sharding) << ", ways "
        << c.hash_ways;
  }
}

// Several steps with state: every sharding on every number of ranks ends with the very bits of one
// rank.
TEST(ShardedTable, AdagradAndAdamAgreeBitForBit) {
  for (const Kind kind : {Kind::kRowwiseAdagrad, Kind::kAdam}) {
    at::Tensor of_one;
    for (const Case& base : cases()) {
      if (!base.deduplicate || base.hash_ways) continue;
      Case c = base;
      c.optimizer = kind;
      std::mutex mutex;
      at::Tensor whole;
      run_rank_threads(c.world, [&](Communicator group) {
        ShardedTable table = make(c, group);
        for (uint64_t k = 0; k < 4; ++k) {
          // Step 2 has fewer ids than ranks: some ranks are empty.
          const Ids ids = skewed_ids(k == 2 ? 1 : 100, 37, k);
          step(table, ids.of_rank(group.rank(), c.world));
        }
        EXPECT_EQ(table.steps(), 4);
        gathered(table, "weight", mutex, whole);
      });
      if (!of_one.defined()) of_one = whole;
      EXPECT_TRUE(at::equal(whole, of_one))
          << c.world << " ranks, sharding " << static_cast<int>(c.sharding);
    }
  }
}

TEST(ShardedTable, CopiesStayEqual) {
  std::vector<at::Tensor> copies(3);
  run_rank_threads(3, [&](Communicator group) {
    Case c{3, Sharding::kDataParallel};
    c.optimizer = Kind::kRowwiseAdagrad;
    ShardedTable table = make(c, group);
    for (uint64_t k = 0; k < 3; ++k) step(table, skewed_ids(50, 37, k).of_rank(group.rank(), 3));
    copies[static_cast<size_t>(group.rank())] = table.weight();
  });
  EXPECT_TRUE(at::equal(copies[0], copies[1]));
  EXPECT_TRUE(at::equal(copies[0], copies[2]));
}

TEST(ShardedTable, NobodyAsksForAnything) {
  for (const Case& c : cases())
    run_rank_threads(c.world, [&](Communicator group) {
      ShardedTable table = make(c, group);
      const at::Tensor before = table.weight().clone();
      step(table, at::empty({0}, at::kLong));
      EXPECT_TRUE(at::equal(table.weight(), before));
      EXPECT_EQ(table.steps(), 1);
    });
}

TEST(ShardedTable, MoreRanksThanRows) {
  for (const Sharding sharding :
       {Sharding::kRowWise, Sharding::kTableWise, Sharding::kDataParallel})
    run_rank_threads(4, [&](Communicator group) {
      ShardedTable table = make({4, sharding}, group, /*rows=*/2);
      table.load("weight", whole_rows(2, 6), 0, 1);
      const at::Tensor ids = at::tensor(std::vector<int64_t>{1, 0, 1}, at::kLong);
      Route route = table.start_ids(ids);
      EXPECT_TRUE(at::equal(table.return_rows(route, table.look_up(route)),
                            whole_rows(2, 6).index_select(0, ids)));
    });
}

TEST(ShardedTable, InitialRowsDependOnSeedNameAndRowOnly) {
  at::Tensor of_one;
  for (const Case& c : cases()) {
    if (c.hash_ways) continue;
    std::mutex mutex;
    at::Tensor whole;
    run_rank_threads(c.world, [&](Communicator group) {
      ShardedTable table = make(c, group);
      gathered(table, "weight", mutex, whole);
    });
    if (!of_one.defined()) of_one = whole;
    EXPECT_TRUE(at::equal(whole, of_one));
  }
  EXPECT_GT(of_one.abs().max().item<float>(), 0);
  const ShardedTable other("user", config_of({}), {}, Communicator(at::kCPU));
  EXPECT_FALSE(at::equal(other.weight(), of_one));
}

TEST(ShardedTable, AnIdBeyondTheTableIsTheUsersError) {
  for (const int64_t id : {int64_t{37}, int64_t{-1}, INT64_MAX})
    for (const int world : {1, 2})
      run_rank_threads(world, [&](Communicator group) {
        ShardedTable table = make({world}, group);
        try {
          table.start_ids(at::tensor(std::vector<int64_t>{3, id}, at::kLong));
          FAIL() << "no error";
        } catch (const UserError& error) {
          EXPECT_THAT(error.what(), testing::HasSubstr("id " + std::to_string(id)));
          EXPECT_THAT(error.what(), testing::HasSubstr("'item' of 37 rows"));
        }
      });
}

TEST(ShardedTable, RefusesWhatCannotBe) {
  const Communicator one(at::kCPU);
  TableConfig config = config_of({});
  config.rows = 0;
  EXPECT_THROW(ShardedTable("t", config, {}, one), UserError);
  config = config_of({});
  config.hash_ways = 4;  // of dim 6
  EXPECT_THROW(ShardedTable("t", config, {}, one), UserError);
  EXPECT_THROW(ShardedTable("t", config_of({}), {Sharding::kTableWise, 1, ""}, one), UserError);
  config.hash_ways = 2;
  EXPECT_THROW(ShardedTable("t", config, {}, one).class_rows(), UserError);
}

// Classes: disjoint shares that are all rows; their gradient beside that of looked-up rows.
TEST(ShardedTable, ClassSharesCoverTheTableAndTakeADenseGradient) {
  at::Tensor of_one;
  for (const Case& c : cases()) {
    if (c.hash_ways || !c.deduplicate) continue;
    std::mutex mutex;
    at::Tensor whole;
    std::vector<int> seen(37, 0);
    const Ids ids = skewed_ids(60, 37, 9);
    run_rank_threads(c.world, [&](Communicator group) {
      ShardedTable table = make(c, group);
      table.load("weight", whole_rows(37, 6), 0, 1);
      const at::Tensor classes = table.class_rows();
      at::Tensor gradient = at::zeros_like(classes);
      for (int64_t l = 0; l < classes.size(0); ++l) {
        const int64_t row = table.class_first() + l * table.class_stride();
        EXPECT_EQ(classes[l][0].item<float>(), 8 * row);
        gradient[l].fill_(static_cast<double>(row % 3));
        const std::lock_guard lock(mutex);
        ++seen[static_cast<size_t>(row)];
      }
      const at::Tensor mine = ids.of_rank(group.rank(), c.world);
      Route route = table.start_ids(mine);
      table.look_up(route);
      Touched touched = table.coalesce(route, gradients_of(mine, 6));
      table.apply(table.add_dense_gradient(touched, gradient));
      gathered(table, "weight", mutex, whole);
    });
    EXPECT_EQ(seen, std::vector<int>(37, 1));
    if (!of_one.defined()) of_one = whole;
    EXPECT_TRUE(at::equal(whole, of_one))
        << c.world << " ranks, sharding " << static_cast<int>(c.sharding);
  }
}

// Saved by 3 ranks row-wise, loaded by 2 under another plan.
TEST(ShardedTable, StateMovesToOtherRanksAndAnotherPlan) {
  for (const Sharding to : {Sharding::kRowWise, Sharding::kTableWise, Sharding::kDataParallel}) {
    std::mutex mutex;
    std::vector<TableState> saved;
    Case from{3, Sharding::kRowWise};
    from.optimizer = Kind::kAdam;
    run_rank_threads(3, [&](Communicator group) {
      ShardedTable table = make(from, group);
      step(table, skewed_ids(200, 37, 1).of_rank(group.rank(), 3));
      const std::lock_guard lock(mutex);
      for (TableState& state : table.state()) saved.push_back(std::move(state));
    });
    run_rank_threads(2, [&](Communicator group) {
      Case c{2, to};
      c.optimizer = Kind::kAdam;
      ShardedTable table = make(c, group);
      std::map<std::string, int64_t> taken;
      for (const TableState& state : saved)
        taken[state.kind] += table.load(state.kind, state.tensor, state.first, state.stride);
      for (const char* kind : {"weight", "adam_m", "adam_v"})
        EXPECT_EQ(taken[kind], table.rows_held()) << kind;
      for (const TableState& mine : table.state())
        for (const TableState& theirs : saved) {
          if (mine.kind != theirs.kind) continue;
          for (int64_t l = 0; l < mine.tensor.size(0); ++l) {
            const int64_t row = mine.first + l * mine.stride - theirs.first;
            if (row < 0 || row % theirs.stride) continue;
            EXPECT_TRUE(at::equal(mine.tensor[l], theirs.tensor[row / theirs.stride]));
          }
        }
      EXPECT_THROW(table.load("adagrad_sum", saved[0].tensor, 0, 3), UserError);
      EXPECT_THROW(table.load("weight", at::zeros({1, 6}), 37, 1), UserError);
      EXPECT_THROW(table.load("weight", at::zeros({1, 5}), 0, 1), UserError);
    });
  }
}

void expect_one_call_equals_two(const Case& c, const Communicator& group) {
  ShardedTable one = make(c, group), two = make(c, group);
  for (uint64_t s = 0; s < 2; ++s) {
    const at::Tensor ids = skewed_ids(60, 37, s).of_rank(group.rank(), c.world);
    step(two, ids);
    Route route = one.start_ids(ids, ShardedTable::Ids::kChecked);
    one.return_rows(route, one.look_up(route));
    one.apply_gradients(route, gradients_of(ids, one.dim()));
  }
  const auto of_one = one.state(), of_two = two.state();
  for (size_t i = 0; i < of_one.size(); ++i)
    EXPECT_TRUE(at::equal(of_one[i].tensor, of_two[i].tensor)) << of_one[i].kind;
  EXPECT_EQ(one.steps(), two.steps());
}

// coalesce and apply in one give the same rows and the same optimiser state.
TEST(ShardedTable, ApplyGradientsEqualsCoalesceAndApply) {
  for (const Case& c : cases()) {
    if (c.world == 3) continue;
    run_rank_threads(c.world, [&](Communicator group) {
      for (const Kind kind : {Kind::kSgd, Kind::kRowwiseAdagrad, Kind::kAdam}) {
        Case mine = c;
        mine.optimizer = kind;
        expect_one_call_equals_two(mine, group);
      }
    });
  }
}

// The optional early starts change nothing.
TEST(ShardedTable, EarlyStartsGiveTheSame) {
  run_rank_threads(3, [&](Communicator group) {
    ShardedTable early = make({3}, group), late = make({3}, group);
    const at::Tensor ids = skewed_ids(90, 37, 2).of_rank(group.rank(), 3);
    Route a = early.start_ids(ids), b = late.start_ids(ids);
    early.send_ids(a);
    const at::Tensor rows = early.look_up(a);
    early.send_rows(a, rows);
    EXPECT_TRUE(at::equal(early.return_rows(a, rows), late.return_rows(b, late.look_up(b))));
    const at::Tensor gradients = gradients_of(ids, 6);
    early.send_gradients(a, gradients);
    EXPECT_TRUE(at::equal(early.coalesce(a, gradients).sums, late.coalesce(b, gradients).sums));
  });
}

}  // namespace
}  // namespace tautline::embedding
