#include "tautline/train/run_report.h"

#include <fstream>
#include <gmock/gmock.h>
#include <iterator>

#include <gtest/gtest.h>

#include "tautline/cluster/peak.h"
#include "tautline/train/metric_log.h"

#include "train/scratch.h"

namespace tautline::train {
namespace {

using testing::HasSubstr;
using testing::Not;

class RunReport : public testing::Test {
 protected:
  RunReport() {
    job_.run_dir = scratch_.path();
    job_.model.name = "m";
    job_.log.name = "events";
    job_.log.baselines["popularity"] = {.hr_at_10 = 0.1, .ndcg_at_10 = 0.02, .setting = ""};
    job_.plan.devices = 8;
    job_.classes = 2'000'000;
    job_.cluster.device.kind = Device::Kind::kCuda;
    job_.cluster.device.name = "NVIDIA H200";
    job_.cluster.device.peak_flops = peak_of("NVIDIA H200");
    result_.cursor.step = result_.steps = 1'234'567;
    result_.cursor.epoch = 1;
    result_.rates.tokens_per_s = 1'234'567.8;
    result_.rates.targets_per_s = 987'654.3;
    result_.mfu = 0.345;
    result_.exposed_communication = 0.0625;
    result_.test.emplace().values = {
        {"hr_at_10", 0.11}, {"ndcg_at_10", 0.05}, {"ndcg_at_10_unseen", 0.06}};
    result_.test->users = 20'000;
  }
  std::string html() {
    {
      MetricLog log(scratch_.path(), 0);
      for (int64_t step = 1; step <= 4; ++step) log.write({"train", step, 0, 0, {{"loss", 5.0}}});
      log.write({"validation", 4, 0, 0, {{"ndcg_at_10", 0.04}, {"ndcg_at_10_later", 0.03}}});
    }
    write_run_report(
        {job_, result_, "tautline train", {{{"forward", 1.0}}}, {512.4}, result_.steps});
    std::ifstream in(scratch_.path("report.html"));
    return {std::istreambuf_iterator<char>(in), {}};
  }
  Scratch scratch_;
  Job job_;
  RunResult result_;
};

TEST_F(RunReport, NumbersAreGroupedAndMetricsHaveNames) {
  const std::string page = html();
  for (const char* text :
       {">1,234,568<", "987,654 targets/s", "step 1,234,567", "1,234,567 steps, 1 epoch",
        "20,000 users", "2,000,000 items", "8 ranks on NVIDIA H200", "NDCG@10 on validation",
        ">NDCG@10, unseen<", "2.5 \xC3\x97 popularity", "34.5 %", "of 989 TFLOP/s",
        "Exposed communication", "6.2 %", "Mean over 1,234,567 steps", ">512<"})
    EXPECT_THAT(page, HasSubstr(text));
  EXPECT_THAT(page, Not(HasSubstr("_at_10")));
}

// The curves are the whole run's; what the recorder measured is not, and says so.
TEST_F(RunReport, ARunThatWentOnSaysSinceWhen) {
  EXPECT_THAT(html(), Not(HasSubstr("since step")));
  result_.steps = 1'000;
  const std::string page = html();
  for (const char* text : {"Mean over 1,000 steps since step 1,233,567. Waiting",
                           "rates, times and loads since step 1,233,567",
                           "times the mean, over all steps since step 1,233,567."})
    EXPECT_THAT(page, HasSubstr(text));
}

TEST_F(RunReport, WhatIsNotKnownIsLeftOut) {
  result_.mfu = 0;
  result_.test.emplace().values = {{"like_auc", 0.7}};
  job_.plan.devices = 1;
  job_.cluster.device.kind = Device::Kind::kCpu;
  const std::string page = html();
  EXPECT_THAT(page, HasSubstr(">like AUC<"));
  EXPECT_THAT(page, HasSubstr("1 rank on CPU"));
  for (const char* text : {"MFU", "Exposed communication", "Unseen", "popularity</td>", "nan"})
    EXPECT_THAT(page, Not(HasSubstr(text)));
}

}  // namespace
}  // namespace tautline::train
