#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tautline/plan/plan_fields.h"

#include "base/unbounded.h"

namespace tautline {
namespace {

using testing::HasSubstr;

Plan example() {
  Plan plan;
  plan.cluster = "p5-8";
  plan.devices = 4;
  plan.model = "m";
  plan.tables["item"] = {Sharding::kRowWise, 0, "5.1 GB in FP32: one owner would be 4.1x the mean"};
  plan.tables["country"] = {Sharding::kTableWise, 3, "16 KB"};
  plan.tables["action"] = {Sharding::kDataParallel, 0, "2 KB"};
  plan.precision.compute = PrecisionPlan::Compute::kBf16;
  return plan;
}

TEST(Plan, ReadsLikeTheExample) {
  const auto plan = parse_config<Plan>(R"(
for: {cluster: p5-8, devices: 64, model: m}
tables:
  item: {sharding: row_wise, because: "5.1 GB in FP32; one owner would be 4.1x the mean"}
  action: {sharding: data_parallel, because: "2 KB"}
collectives:
  dense_gradient: {bucket: 25 MiB, overlap: false}
balance: {deal: in_order}
precision: bf16
)",
                                       "plan.yaml");
  EXPECT_EQ(plan.devices, 64);
  EXPECT_EQ(plan.tables.at("action").sharding, Sharding::kDataParallel);
  EXPECT_FALSE(plan.dense_gradient.overlap);
  EXPECT_EQ(plan.balance.deal, BalancePlan::Deal::kInOrder);
  EXPECT_EQ(plan.precision.compute, PrecisionPlan::Compute::kBf16);
}

TEST(Plan, ReadsBackAndKeepsItsDigest) {
  const Plan plan = example();
  const auto again = parse_config<Plan>(to_yaml(plan), "again");
  EXPECT_EQ(again, plan);
  EXPECT_EQ(digest(again), digest(plan));
  EXPECT_EQ(digest(plan).size(), 16u);
}

TEST(Plan, EveryChangeChangesTheDigest) {
  const Plan plan = example();
  std::vector<Plan> changed(7, plan);
  changed[0].devices = 5;
  changed[1].tables["country"].owner = 2;
  changed[2].tables["item"].sharding = Sharding::kDataParallel;
  changed[3].dense_gradient.overlap = false;
  changed[4].balance.deal = BalancePlan::Deal::kInOrder;
  changed[5].precision.compute = PrecisionPlan::Compute::kFp32;
  changed[6].dense_gradient.bucket_bytes += 1;
  for (const Plan& other : changed) EXPECT_NE(digest(other), digest(plan));
}

TEST(Plan, PrintsEveryTableWithItsReason) {
  const std::string text = printed(example());
  EXPECT_THAT(text, HasSubstr("for m on 4 ranks of p5-8"));
  EXPECT_THAT(text, testing::ContainsRegex("country +table_wise +rank 3 +16 KB"));
  EXPECT_THAT(text, testing::ContainsRegex("item +row_wise +5.1 GB in FP32"));
  EXPECT_THAT(text, HasSubstr("buckets of 25 MiB"));
}

TEST(Plan, RefusesAnOwnerThatIsNoRank) {
  try {
    parse_config<Plan>("for: {devices: 2}\ntables:\n  t: {sharding: table_wise, owner: 2}\n",
                       "p.yaml");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "p.yaml:3:29: owner 2 of the table 't' is not a rank of 2 (0 to 1)");
  }
  EXPECT_THROW(parse_config<Plan>("for: {devices: 0}\n", "p.yaml"), UserError);
  // A row-wise table has no owner.
  EXPECT_THROW(parse_config<Plan>("tables: {t: {sharding: row_wise, owner: 0}}\n", "p"), UserError);
}

class SavedPlan : public testing::Test {
 protected:
  void SetUp() override { std::ofstream(path_) << to_yaml(example()); }
  void TearDown() override { std::filesystem::remove(path_); }
  std::string error(int ranks, const std::vector<std::string>& tables) {
    try {
      read_plan_for(path_, ranks, tables);
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  }
  std::string path_ = (std::filesystem::temp_directory_path() /
                       ("tautline_plan_" + std::to_string(getpid()) + ".yaml"))
                          .string();
};

TEST_F(SavedPlan, IsReadForTheNumberOfRanksItWasMadeFor) {
  EXPECT_EQ(read_plan_for(path_, 4, {"item", "country", "action"}), example());
  const std::string text = error(2, {"item", "country", "action"});
  EXPECT_THAT(text, HasSubstr("this Plan was made for 4 ranks, not for 2"));
  EXPECT_THAT(text, HasSubstr("leave plan.file out to derive one anew"));
}

TEST_F(SavedPlan, MustNameTheModelsTables) {
  EXPECT_THAT(error(4, {"item", "country", "action", "user"}),
              HasSubstr("does not say where the model's table 'user' lives"));
  EXPECT_THAT(error(4, {"item", "country"}), HasSubstr("the model has no table 'action'"));
}

TEST(Plan, EveryIntegerHasAnUpperBound) {
  EXPECT_THAT(unbounded_integers(Plan{}), testing::IsEmpty());
  EXPECT_THAT(unbounded_integers(PlanRequest{}), testing::IsEmpty());
  const auto error_of = [](const std::string& set) -> std::string {
    try {
      parse_config<PlanRequest>("{}", "plan.yaml", {set});
      return "no error";
    } catch (const UserError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(error_of("collectives.dense_gradient.bucket=1e30 TiB"),
              HasSubstr("a bucket holds 1 TiB at most"));
}

TEST(PlanRequest, RefusesAShardingThatDoesNotExist) {
  const auto request = parse_config<PlanRequest>("tables: {item: row_wise}\n", "r.yaml");
  EXPECT_EQ(request.tables.at("item"), "row_wise");
  PlanRequest wrong = request;
  wrong.tables["item"] = "rowwise";
  try {
    validate(wrong);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "the sharding of 'item' cannot be 'rowwise'; did you mean 'row_wise'?");
  }
}

}  // namespace
}  // namespace tautline
