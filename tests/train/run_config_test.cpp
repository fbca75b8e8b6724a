// The YAML of a run: its phrases, its checks, and the configs that are shipped.
#include <filesystem>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tautline/train/run_fields.h"

#include "base/unbounded.h"

namespace tautline {
namespace {

using testing::HasSubstr;

const char* kText = R"(model: configs/models/m.yaml
data: {log: data/grocery, holdout: leave_last_out, workers: 2}
cluster: discover
plan: {precision: fp32, tables: {item: row_wise}}
ranks: 4
batch: 512
epochs: 20
dense_optimizer: {adamw: {lr: 1e-3, weight_decay: 0.1, warmup: 200, clip: 1.0}}
evaluate: {every: 1 epoch, metrics: [hr@10, ndcg@10, auc, normalized_entropy], users: 20_000, stop_after: 5 without ndcg@10}
checkpoint: {every: 500, keep: 3}
seed: 1
)";

std::string error_of(const std::vector<std::string>& sets) {
  try {
    parse_config<RunConfig>(kText, "run.yaml", sets);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(RunConfig, ReadsTheSpellingOfTheExamples) {
  const auto run = parse_config<RunConfig>(kText, "run.yaml");
  EXPECT_EQ(run.ranks, 4);
  EXPECT_EQ(run.epochs, 20);
  EXPECT_EQ(run.steps, 0);
  EXPECT_EQ(run.plan.compute, "fp32");
  EXPECT_EQ(run.plan.tables.at("item"), "row_wise");
  EXPECT_EQ(run.dense_optimizer.warmup, 200);
  EXPECT_EQ(run.evaluate.every_epochs, 1);
  EXPECT_EQ(run.evaluate.stop_after, 5);
  EXPECT_EQ(run.evaluate.stop_metric, "ndcg@10");
  EXPECT_EQ(run.evaluate.users, 20'000);
  EXPECT_EQ(parse_config<RunConfig>(to_yaml(run), "again"), run);
}

// Steps and users may be counted beyond 2^31; a seed is any number, and rates are no integers.
TEST(RunConfig, EveryIntegerHasAnUpperBound) {
  const auto run = parse_config<RunConfig>(kText, "run.yaml");
  EXPECT_THAT(unbounded_integers(run),
              testing::UnorderedElementsAre(
                  "seed", "threads", "data.shuffle_window", "batch_tokens", "steps",
                  "evaluate.users", "checkpoint.every", "checkpoint.keep",
                  "dense_optimizer.adamw.warmup", "dense_optimizer.adamw.clip"));
  for (const char* key : {"batch_tokens", "evaluate.users", "checkpoint.every",
                          "dense_optimizer.adamw.warmup", "data.shuffle_window"})
    EXPECT_THAT(error_of({std::string(key) + "=9223372036854775807"}),
                HasSubstr(std::string(key) + " must be 1_000_000_000_000 at most"))
        << key;
  EXPECT_THAT(error_of({"steps=9223372036854775807"}), HasSubstr("steps must be"));
  EXPECT_EQ(error_of({"batch=9223372036854775807"}),
            "--set batch=9223372036854775807: batch must be 1_073_741_824 at most, found "
            "9_223_372_036_854_775_807");
  EXPECT_THAT(error_of({"evaluate.every=9223372036854775807 steps"}),
              HasSubstr("evaluate.every must be 1_000_000_000_000 at most"));
  EXPECT_THAT(error_of({"evaluate.every=1e300 epochs"}), HasSubstr("must be 1e9 epochs at most"));
}

TEST(RunConfig, PhrasesReadAndWrite) {
  for (const char* every : {"1 epoch", "0.5 epochs", "500 steps", "1 step", "end"}) {
    const auto run =
        parse_config<RunConfig>(kText, "run.yaml", {std::string("evaluate.every=") + every});
    EXPECT_THAT(to_yaml(run), HasSubstr(std::string("every: ") + every + "\n"));
  }
  const auto run = parse_config<RunConfig>(kText, "run.yaml", {"evaluate.stop_after=never"});
  EXPECT_EQ(run.evaluate.stop_after, 0);
  for (const char* wrong : {"evaluate.every=often", "evaluate.every=1.5 steps",
                            "evaluate.every=0 epochs", "evaluate.every=3"})
    EXPECT_THAT(error_of({wrong}), HasSubstr("'evaluate.every' expects '1 epoch', '500 steps'"));
  EXPECT_THAT(error_of({"evaluate.stop_after=5 without ndgc@10"}),
              HasSubstr("did you mean 'ndcg@10'?"));
  EXPECT_THAT(error_of({"evaluate.stop_after=0 without loss"}), HasSubstr("expects '5 without"));
}

TEST(RunConfig, OneOfEpochsAndSteps) {
  EXPECT_EQ(parse_config<RunConfig>(kText, "run.yaml", {"steps=10"}).steps, 10);
  EXPECT_EQ(parse_config<RunConfig>(kText, "run.yaml", {"steps=10"}).epochs, 0);
  EXPECT_THAT(error_of({"epochs=0"}), HasSubstr("epochs or steps must say how long"));
  EXPECT_THAT(error_of({"epochs=1", "steps=1"}), HasSubstr("both given"));
}

TEST(RunConfig, RefusesWhatCannotRun) {
  EXPECT_EQ(error_of({"batch=0"}), "--set batch=0: batch must be 1 or more, found 0");
  EXPECT_EQ(error_of({"dense_optimizer.adamw.lr=-1"}),
            "--set dense_optimizer.adamw.lr=-1: dense_optimizer.adamw.lr must be 0 or more, found "
            "-1");
  EXPECT_EQ(error_of({"dense_optimiser.adamw.lr=1"}),
            "--set dense_optimiser.adamw.lr=1: unknown key 'dense_optimiser'; did you mean "
            "'dense_optimizer'?");
  EXPECT_THAT(error_of({"evaluate.metrics=[ndcg10]"}), HasSubstr("did you mean 'ndcg@10'?"));
  EXPECT_THAT(error_of({"plan.tables.item=rowwise"}), HasSubstr("did you mean 'row_wise'?"));
  EXPECT_THAT(error_of({"data.holdout=none"}), HasSubstr("needs held-out events"));
  EXPECT_THAT(error_of({"checkpoint.keep=0"}), HasSubstr("checkpoint.keep must be 1 or more"));
  EXPECT_EQ(error_of({"device=gpu"}),
            "--set device=gpu: 'device' cannot be 'gpu'; did you mean 'cuda'? (valid: auto, cpu, "
            "cuda)");
}

TEST(RunConfig, EveryConfiguredRunReadsWithItsModel) {
  int count = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(TAUTLINE_SOURCE_DIR "/configs/runs")) {
    const RunWithModel all = read_run(file.path(), {"data.log=somewhere"});
    EXPECT_EQ(all.run.data.log, "somewhere");
    EXPECT_FALSE(all.model.tables.empty()) << file.path();
    EXPECT_GE(all.run.checkpoint.every, 1) << file.path();
    ++count;
  }
  EXPECT_GE(count, 2);
}

TEST(RunConfig, SetReachesTheModelToo) {
  const std::string file = TAUTLINE_SOURCE_DIR "/configs/runs/log.yaml";
  const RunWithModel all = read_run(
      file, {"data.log=d", "model.heads.next_item.temperature=0.05", "model.backbone.layers=3"});
  EXPECT_EQ(all.model.heads.at("next_item").temperature, 0.05);
  EXPECT_EQ(all.model.backbone.layers, 3);
  try {
    read_run(file, {"data.log=d", "model.bakbone.layers=3"});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "--set model.bakbone.layers=3: unknown key 'bakbone'; did you mean 'backbone'?");
  }
  try {
    read_run(file, {"data.log=d", "model.backbone"});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--set model.backbone: expected key=value"));
  }
  try {
    read_run(file);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--set data.log=DIR"));
  }
  try {
    read_run(file, {"data.log=d", "model=nowhere.yaml"});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--set model=nowhere.yaml: there is no model file"));
  }
}

}  // namespace
}  // namespace tautline
