// What a run says of itself names the events that its numbers are of.
#include "tautline/train/summary.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

namespace tautline::train {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Summary, TheLineOfAnEvaluationSaysValidation) {
  EvaluationResult result;
  result.values = {{"hr_at_10", 0.5}, {"ndcg_at_10", 0.25}, {"hr_at_10_unseen", 0.75}};
  EXPECT_EQ(validation_line({.epoch = 1, .step_in_epoch = 0, .step = 45}, 3.5, result),
            "step 45  epoch 1  loss 3.5  validation hr_at_10 0.500000  ndcg_at_10 0.250000");
  EXPECT_EQ(validation_line({.epoch = 1, .step_in_epoch = 0, .step = 45}, 3.5, {}),
            "step 45  epoch 1  loss 3.5");
}

TEST(Summary, TheLastTableSaysTest) {
  Job job;
  job.model.name = "tiny";
  job.log.baselines["popularity"].ndcg_at_10 = 0.125;
  RunResult result;
  result.test.emplace().values = {{"ndcg_at_10", 0.25}};
  EXPECT_THAT(summary_table(job, result), HasSubstr("test events    tiny  popularity\n"
                                                    "-----------  ------  ----------\n"
                                                    "ndcg_at_10   0.2500      0.1250\n"));
  result.test.reset();
  EXPECT_THAT(summary_table(job, result), Not(HasSubstr("test events")));
}

}  // namespace
}  // namespace tautline::train
