// What a run says of itself names the events that its numbers are of.
#include "tautline/train/summary.h"

#include <gmock/gmock.h>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tautline/cluster/peak.h"

namespace tautline::train {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Summary, TheLineOfAnEvaluationSaysValidation) {
  EvaluationResult result;
  result.values = {{"hr_at_10", 0.5}, {"ndcg_at_10", 0.25}, {"hr_at_10_unseen", 0.75}};
  EXPECT_EQ(validation_line({}, {.epoch = 1, .step_in_epoch = 0, .step = 45}, 3.5, result),
            "step 45  epoch 1  loss 3.5  validation hr_at_10 0.500000  ndcg_at_10 0.250000");
  EXPECT_EQ(validation_line({}, {.epoch = 1, .step_in_epoch = 0, .step = 45}, 3.5, {}),
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

TEST(Summary, OnlyTheMetricsThatTheRunAsksForAreShown) {
  Job job;
  job.model.name = "tiny";
  job.run.evaluate.metrics = {"ndcg@10", "auc"};
  RunResult result;
  result.test.emplace().values = {{"hr_at_10", 0.5},
                                  {"ndcg_at_10", 0.25},
                                  {"ndcg_at_10_unseen", 0.125},
                                  {"like_auc", 0.75},
                                  {"like_normalized_entropy", 0.875}};
  const std::string table = summary_table(job, result);
  for (const char* shown : {"\nndcg_at_10 ", "\nndcg_at_10_unseen ", "\nlike_auc "})
    EXPECT_THAT(table, HasSubstr(shown));
  for (const char* hidden : {"hr_at_10", "like_normalized_entropy"})
    EXPECT_THAT(table, Not(HasSubstr(hidden)));
  EXPECT_EQ(validation_line(job.run.evaluate, {}, 3.5, *result.test),
            "step 0  epoch 0  loss 3.5  validation ndcg_at_10 0.250000  like_auc 0.750000");
  EXPECT_EQ(nlohmann::json::parse(summary_json(job, result)).at("hr_at_10"),
            0.5);  // scripts see all
}

TEST(Summary, TheTableSaysWhichWeightsWereTested) {
  Job job;
  RunResult result;
  result.cursor.step = 450;
  EXPECT_THAT(summary_table(job, result), Not(HasSubstr("tested weights")));
  result.test.emplace();
  EXPECT_THAT(summary_table(job, result),
              testing::ContainsRegex("tested weights +last, step 450\n"));
  result.best_step = 360;  // kept from before a resume: nobody watches now
  EXPECT_THAT(summary_table(job, result), HasSubstr("last, step 450\n"));
  job.run.evaluate.stop_after = 5;
  EXPECT_THAT(summary_table(job, result), HasSubstr("best on validation, step 360\n"));
  EXPECT_EQ(nlohmann::json::parse(summary_json(job, result)).at("tested_step"), 360);
}

// 100 TFLOP/s on each of 4 ranks.
RunResult result_on(const Job& job) {
  RunResult result;
  Throughput throughput;
  for (int step = 0; step < 20; ++step) {
    throughput.add({0.5, 64, 1024, 1000, 1.0});
    throughput.add_flop(200e12);
  }
  result.rates = throughput.rates();
  result.mfu = model_flop_utilisation(result.rates, 4, job.cluster.device.peak_flops.bf16);
  return result;
}

TEST(Summary, MetricsHaveNamesForPeople) {
  for (const auto& [name, title] :
       std::map<std::string, std::string>{{"ndcg_at_10", "NDCG@10"},
                                          {"hr_at_10_unseen", "HR@10, unseen"},
                                          {"ndcg_at_10_later", "NDCG@10, later"},
                                          {"like_auc", "like AUC"},
                                          {"like_normalized_entropy", "like normalised entropy"},
                                          {"recall", "recall"}})
    EXPECT_EQ(metric_title(name), title);
}

TEST(Summary, MfuIsAShareOfTheDevicesPeak) {
  Job job;
  job.cluster.device.peak_flops = peak_of("NVIDIA H200");
  const RunResult result = result_on(job);
  EXPECT_DOUBLE_EQ(result.mfu, 100e12 / 989e12);
  EXPECT_THAT(summary_table(job, result), testing::ContainsRegex("MFU .989 TFLOP/s. +10.1 %"));
  EXPECT_EQ(nlohmann::json::parse(summary_json(job, result)).at("mfu"), result.mfu);
  job.cluster.device.peak_flops = {.bf16 = 400e12};
  EXPECT_THAT(summary_table(job, result_on(job)),
              testing::ContainsRegex("MFU .400 TFLOP/s. +25.0 %"));
}

TEST(Summary, NoPeakNoMfu) {
  Job job;
  job.cluster.device.peak_flops = peak_of("a card of next year");
  const RunResult result = result_on(job);
  EXPECT_EQ(result.mfu, 0);
  EXPECT_THAT(summary_table(job, result), Not(HasSubstr("MFU")));
  EXPECT_FALSE(nlohmann::json::parse(summary_json(job, result)).contains("mfu"));
}

}  // namespace
}  // namespace tautline::train
