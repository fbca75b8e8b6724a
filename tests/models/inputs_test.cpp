#include "tautline/models/inputs.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tautline/base/error.h"

#include "models/tiny.h"

namespace tautline::models {
namespace {

std::vector<int64_t> values(const at::Tensor& x) {
  return {x.const_data_ptr<int64_t>(), x.const_data_ptr<int64_t>() + x.numel()};
}

TEST(Inputs, TargetsShareTheNextTokensRow) {
  const InputBuilder builder(rich(50), 50, 1, at::kCPU);
  const data::Batch batch = make_batch({3, 0, 1}, 50);
  const Inputs in = builder.training(batch);
  const auto ids = values(in.ids.at("item"));
  // 4 tokens, one target past the end of each of the 2 samples that have any, 5 negatives.
  ASSERT_EQ(ids.size(), 4u + 2u + 5u);
  const auto rows = values(in.target_row);
  for (size_t t = 0; t < rows.size(); ++t) EXPECT_EQ(ids[rows[t]], batch.target[t]);
  EXPECT_EQ(in.negative_row, 6);
  EXPECT_EQ(values(in.negative_id), std::vector<int64_t>(ids.begin() + 6, ids.end()));
  EXPECT_EQ(values(in.ids.at("shop")).size(), 8u);  // two features read the column
}

TEST(Inputs, AnIdBeyondItsTableIsTheUsersError) {
  const InputBuilder builder(rich(50), 50, 1, at::kCPU);
  for (const int64_t wrong : {-1, 5}) {
    data::Batch batch = make_batch({3, 2}, 50);
    batch.categorical["shop"][4] = wrong;
    try {
      builder.training(batch);
      ADD_FAILURE() << "took id " << wrong;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("id " + std::to_string(wrong) +
                                                   " is beyond table 'shop' of 5 rows"));
    }
  }
}

TEST(Inputs, NegativesDependOnSeedAndStepAlone) {
  const auto a = draw_negatives(1000, 37, 5, 11);
  EXPECT_EQ(a, draw_negatives(1000, 37, 5, 11));
  EXPECT_NE(a, draw_negatives(1000, 37, 5, 12));
  EXPECT_NE(a, draw_negatives(1000, 37, 6, 11));
  EXPECT_THAT(a, testing::Each(testing::AllOf(testing::Ge(1), testing::Le(37))));
  EXPECT_THAT(a, testing::Contains(1));
  EXPECT_THAT(a, testing::Contains(37));
}

TEST(Inputs, TimeGapBucketsAreLogarithmic) {
  EXPECT_EQ(time_gap_bucket(0, 64), 0);
  EXPECT_EQ(time_gap_bucket(-5, 64), 0);
  EXPECT_EQ(time_gap_bucket(1, 64), 2);
  EXPECT_EQ(time_gap_bucket(1023, 64), 20);
  EXPECT_EQ(time_gap_bucket(int64_t{1} << 40, 64), 63);
}

TEST(Inputs, RepeatsAreTheDistinctItemsOfEachTargetsHistory) {
  ModelConfig model = sasrec(50);
  model.heads.at("next_item").repeat_bias = true;
  const InputBuilder builder(model, 50, 1, at::kCPU);
  data::Batch batch = make_batch({4, 0, 2}, 50);
  batch.item = {7, 8, 7, 9, 8, 8};
  batch.target = {8, 7, 9, 0, 8, 5};  // the fourth predicts nothing
  const Inputs in = builder.training(batch);
  EXPECT_THAT(values(in.repeat_id), testing::ElementsAre(7, 8, 9, 8));
  EXPECT_THAT(values(in.repeat_first), testing::ElementsAre(0, 0, 0, 3, 3));
  EXPECT_THAT(values(in.repeat_last), testing::ElementsAre(1, 2, 2, 4, 4));
}

TEST(Inputs, EvaluationPredictsFromTheLastToken) {
  const InputBuilder builder(sasrec(50), 50, 1, at::kCPU);
  data::EvaluationBatch batch;
  batch.user = {0, 1};
  batch.offsets = {0, 3, 4};
  batch.item = {5, 6, 7, 8};
  batch.time = {1, 2, 3, 4};
  batch.target = {9, 10};
  const Inputs in = builder.evaluation(batch);
  EXPECT_THAT(values(in.target_token), testing::ElementsAre(2, 3));
  EXPECT_THAT(values(in.ids.at("item")), testing::ElementsAre(5, 6, 7, 8));
}

}  // namespace
}  // namespace tautline::models
