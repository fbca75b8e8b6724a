// What a run that goes on may change of the run that it goes on from.
#include "tautline/train/resume.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tautline/plan/plan_fields.h"
#include "tautline/workload/model_fields.h"

#include "train/error_of.h"

namespace tautline::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Origin {
  Job job;
  Manifest manifest;
  Origin() {
    job.run.data.log = "logs/a";
    job.run.model = "m.yaml";
    job.run.epochs = 2;
    job.run.batch = 128;
    job.run_dir = "runs/a";
    job.model = read_config<ModelConfig>(TAUTLINE_SOURCE_DIR "/configs/models/sasrec.yaml");
    job.model.tables.at("item").rows = 501;
    job.log.users = 400;
    job.log.events = 4800;
    job.log.vocabularies["item"].size = 500;
    job.log.items_digest = job.log.histories_digest = "0123456789abcdef";
    manifest.step = 20;
    manifest.cursor = {1, 7, 20};
    manifest.seed = job.run.seed;
    manifest.plan = to_yaml(job.plan);
    keep_origin(job, manifest);
    manifest = manifest_from_text(to_text(manifest), "manifest.json");
  }
  std::string refused() const {
    return error_of([&] { compare_origin(job, manifest); });
  }
};

TEST(Resume, WhatAStepDoesOtherwiseIsTold) {
  Origin o;
  EXPECT_THAT(compare_origin(o.job, o.manifest), IsEmpty());
  o.job.run.batch = 256;
  EXPECT_THAT(compare_origin(o.job, o.manifest),
              ElementsAre("resumed with batch 256, the checkpoint was written with 128"));
  o.job.run.dense_optimizer.lr = 0.5;
  o.job.model.tables.at("item").optimizer.lr = 0.25;
  o.job.model.backbone.dropout = 0.125;
  o.job.plan.precision.compute = PrecisionPlan::Compute::kBf16;
  const auto told = compare_origin(o.job, o.manifest);
  EXPECT_EQ(told.size(), 5u);
  EXPECT_THAT(told, testing::Contains(HasSubstr("resumed with dense_optimizer.adamw.lr 0.5, ")));
  EXPECT_THAT(told, testing::Contains(HasSubstr("resumed with plan.precision bf16, ")));
  EXPECT_THAT(told, testing::Contains(HasSubstr("resumed with model.backbone.dropout 0.125, ")));
}

TEST(Resume, WhatIsNoPartOfTheMathematicsIsNot) {
  Origin o;
  o.job.run.threads = 3;
  o.job.run.checkpoint.every = 7;
  o.job.run.epochs = 9;
  o.job.run.data.workers = 4;
  o.job.run.data.log = "moved/a";
  o.job.log.name = "b";
  o.job.log.dense = {"price"};
  o.job.plan.devices = 8;
  EXPECT_THAT(compare_origin(o.job, o.manifest), IsEmpty());
  o.job.run.dense_optimizer.decay = "cosine";  // now the end is part of each step's rate
  EXPECT_EQ(compare_origin(o.job, o.manifest).size(), 2u);
}

TEST(Resume, AnotherSeedLogOrModelIsRefusedByName) {
  Origin seed;
  seed.job.run.seed = 2;
  EXPECT_EQ(seed.refused(),
            "seed: the checkpoint of step 20 in runs/a was made with seed 1, this run says 2");
  Origin log;
  log.job.log.users = 300;
  log.job.model.tables.at("item").rows = 401;  // what follows from it is not the news
  EXPECT_EQ(
      log.refused(),
      "data.log: the checkpoint of step 20 in runs/a was made on a log with users 400, logs/a "
      "has 300; resume with the log it was made on");
  Origin same_counts;
  same_counts.job.log.histories_digest = "fedcba9876543210";
  EXPECT_EQ(same_counts.refused(),
            "data.log: the checkpoint of step 20 in runs/a was made on a log with histories_digest "
            "0123456789abcdef, logs/a has fedcba9876543210; resume with the log it was made on");
  Origin other_names;
  other_names.job.log.items_digest = "fedcba9876543210";
  EXPECT_THAT(other_names.refused(), HasSubstr("items_digest"));
  Origin model;
  model.job.model.backbone.layers = 9;
  EXPECT_THAT(model.refused(),
              HasSubstr("model.backbone.layers: the checkpoint of step 20 in runs/a "
                        "was made with 2, this run says 9; resume with the model"));
  Origin optimizer;
  optimizer.job.model.tables.at("item").optimizer.kind = TableOptimizer::Kind::kSgd;
  EXPECT_THAT(optimizer.refused(), HasSubstr("model.tables.item.optimizer."));
}

/// A model of clicks that reads the categorical column "action" and the label "clicked" of a log that
/// has more columns.
Origin of_clicks() {
  Origin o;
  o.job.model = read_config<ModelConfig>(TAUTLINE_SOURCE_DIR "/configs/models/clicks.yaml");
  o.job.log.column_digests = {
      {"action", "00a"}, {"clicked", "00b"}, {"price", "00c"}, {"brand", "00d"}};
  keep_origin(o.job, o.manifest);
  return o;
}

TEST(Resume, OtherValuesInAColumnThatTheModelReadsAreRefused) {
  for (const char* column : {"action", "clicked"}) {
    Origin o = of_clicks();
    EXPECT_EQ(o.refused(), "");
    const std::string before = o.job.log.column_digests.at(column);
    o.job.log.column_digests.at(column) = "00f";
    EXPECT_EQ(
        o.refused(),
        "data.log: the checkpoint of step 20 in runs/a was made on a log with other values in "
        "the column '" +
            std::string(column) + "' (digest " + before +
            ", logs/a has 00f); resume with the log it was made on");
    o.job.log.column_digests.clear();  // built before there were digests of columns
    EXPECT_EQ(o.refused(), "");
  }
}

TEST(Resume, AColumnThatTheModelDoesNotReadMayDiffer) {
  Origin o = of_clicks();
  o.job.log.column_digests.at("price") = "00f";
  o.job.log.column_digests.erase("brand");
  o.job.log.column_digests["rating"] = "00e";
  EXPECT_EQ(o.refused(), "");
}

TEST(Resume, ALogOfBeforeThereWereDigestsHasNoneToCompare) {
  Origin o;
  o.job.log.items_digest = o.job.log.histories_digest = "";
  EXPECT_EQ(o.refused(), "");
}

TEST(Resume, ACheckpointThatKeptNoModelHasItsDigest) {
  Origin o;
  o.job.model_digest = "abc";
  EXPECT_EQ(o.refused(), "");
  o.manifest.extra.clear();
  EXPECT_THAT(o.refused(), HasSubstr("another model or another log"));
}

TEST(Resume, AKeyThatTheCheckpointDidNotKnowHadItsDefault) {
  Origin o;
  std::string& model = o.manifest.extra.at("model");
  const size_t at = model.find("causal: true");
  ASSERT_NE(at, std::string::npos);
  model.erase(model.rfind('\n', at), model.find('\n', at) - model.rfind('\n', at));
  EXPECT_THAT(compare_origin(o.job, o.manifest), IsEmpty());
}

TEST(Resume, AnotherBatchGoesOnInsideTheEpoch) {
  Origin o;
  EXPECT_EQ(resumed_cursor(o.job, o.manifest), o.manifest.cursor);
  o.job.run.batch = 256;  // 7 x 128 samples were seen: 3.5 steps
  EXPECT_EQ(resumed_cursor(o.job, o.manifest), (data::Cursor{1, 3, 20}));
  o.job.run.batch = 100;
  EXPECT_EQ(resumed_cursor(o.job, o.manifest), (data::Cursor{1, 8, 20}));
  o.job.run.batch_tokens = 1000;
  EXPECT_EQ(resumed_cursor(o.job, o.manifest), o.manifest.cursor);
}

}  // namespace
}  // namespace tautline::train
