// The built program trains a small synthetic log: on any number of ranks, twice, with a stop
// between.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tautline/timeline/file.h"
#include "tautline/timeline/statistics.h"
#include "tautline/train/metric_log.h"

extern char** environ;

namespace tautline::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Outcome {
  int status = -1;
  std::string out, err;
  json last() const { return json::parse(out); }  // all that --json prints
};

std::string read_file(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Training : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("tautline-training-" + std::to_string(getpid()));
    fs::create_directories(folder_);
    const std::string text = (folder_ / "log.csv").string();
    Outcome made =
        program({"data", "synth", text, "--users", "400", "--items", "150", "--events-mean", "12"});
    ASSERT_EQ(made.status, 0) << made.err;
    made = program({"data", "build", text, (folder_ / "log").string()});
    ASSERT_EQ(made.status, 0) << made.err;
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }

  static pid_t start(std::vector<std::string> arguments, const std::string& name) {
    arguments.insert(arguments.begin(), TAUTLINE_BINARY_DIR "/tautline");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    for (const auto& [descriptor, suffix] : {std::pair{1, ".out"}, std::pair{2, ".err"}}) {
      posix_spawn_file_actions_addopen(&actions, descriptor, (folder_ / (name + suffix)).c_str(),
                                       O_WRONLY | O_CREAT | O_TRUNC, 0600);
    }
    pid_t child = -1;
    EXPECT_EQ(posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environ), 0)
        << argv[0] << " is not built";
    posix_spawn_file_actions_destroy(&actions);
    return child;
  }
  static Outcome finish(pid_t child, const std::string& name) {
    int status = 0;
    waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            read_file(folder_ / (name + ".out")), read_file(folder_ / (name + ".err"))};
  }
  static Outcome program(const std::vector<std::string>& arguments) {
    return finish(start(arguments, "program"), "program");
  }

  static std::vector<std::string> training(const std::string& run, int ranks,
                                           std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {
        "train",     TAUTLINE_SOURCE_DIR "/configs/runs/quickstart.yaml",
        "--run-dir", (folder_ / run).string(),
        "--ranks",   std::to_string(ranks),
        "--json"};
    for (const char* set : {"threads=1", "batch=24", "steps=20", "epochs=0", "evaluate.every=end",
                            "model.backbone.dropout=0.2", "checkpoint.every=10"}) {
      arguments.emplace_back("--set");
      arguments.emplace_back(set);
    }
    arguments.emplace_back("--set");
    arguments.push_back("data.log=" + (folder_ / "log").string());
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  static std::vector<double> losses(const std::string& run) {
    std::vector<double> out;
    if (!fs::exists(folder_ / run / "metrics.jsonl")) return out;
    for (const MetricRecord& record : read_metric_log((folder_ / run).string())) {
      if (record.kind == "train") out.push_back(record.values.at(0).second);
    }
    return out;
  }

  static fs::path folder_;
};
fs::path Training::folder_;

/// A step rounds a few thousand times between parameters and loss; independent roundings add as the
/// root of their number.
double tolerance(size_t step, double loss) {
  return 64 * 0x1p-24 * static_cast<double>(step + 1) * std::abs(loss);
}

TEST_F(Training, TheNumberOfRanksIsNotPartOfTheMathematics) {
  for (const std::string loss : {"full_softmax", "sampled_softmax", "repeat_bias"}) {
    const std::string set = loss == "repeat_bias"
                                ? "{loss: full_softmax, table: item, repeat_bias: true}"
                                : "{loss: " + loss + ", table: item}";
    std::vector<double> one;
    for (int ranks = 1; ranks <= 4; ++ranks) {
      const std::string run = loss + std::to_string(ranks);
      const Outcome outcome =
          program(training(run, ranks, {"--set", "model.heads.next_item=" + set}));
      ASSERT_EQ(outcome.status, 0) << outcome.err;
      const std::vector<double> found = losses(run);
      ASSERT_EQ(found.size(), 20u);
      if (ranks == 1) one = found;
      double used = 0;
      for (size_t k = 0; k < found.size(); ++k) {
        EXPECT_NEAR(found[k], one[k], tolerance(k, one[k])) << loss << ", step " << k;
        used = std::max(used, std::abs(found[k] - one[k]) / tolerance(k, one[k]));
      }
      std::printf("%s on %d ranks: %.1f %% of the tolerance used\n", loss.c_str(), ranks,
                  100 * used);
    }
  }
}

TEST_F(Training, ResumesWithTheSameBitsAndOnOtherRanks) {
  ASSERT_EQ(program(training("whole", 2, {"--set", "steps=30"})).status, 0);
  ASSERT_EQ(program(training("parts", 2)).status, 0);
  fs::copy(folder_ / "parts", folder_ / "elsewhere", fs::copy_options::recursive);
  const Outcome again = program(training("parts", 2, {"--resume", "--set", "steps=30"}));
  ASSERT_EQ(again.status, 0) << again.err;
  const std::vector<double> whole = losses("whole"), parts = losses("parts");
  ASSERT_EQ(parts.size(), 30u);
  EXPECT_EQ(whole, parts);

  const Outcome three = program(training("elsewhere", 3, {"--resume", "--set", "steps=30"}));
  ASSERT_EQ(three.status, 0) << three.err;
  const std::vector<double> elsewhere = losses("elsewhere");
  ASSERT_EQ(elsewhere.size(), 30u);
  for (size_t k = 20; k < 30; ++k) EXPECT_NEAR(elsewhere[k], whole[k], tolerance(k, whole[k]));
}

TEST_F(Training, AnotherBatchIsToldAndAnotherLogRefused) {
  ASSERT_EQ(program(training("changed", 1)).status, 0);
  const Outcome batch =
      program(training("changed", 2, {"--resume", "--set", "batch=48", "--set", "steps=24"}));
  ASSERT_EQ(batch.status, 0) << batch.err;
  EXPECT_THAT(batch.err,
              testing::HasSubstr("\nresumed with batch 48, the checkpoint was written with 24\n"));
  EXPECT_EQ(losses("changed").size(), 24u);
  const std::string text = (folder_ / "other.csv").string(), log = (folder_ / "other").string();
  ASSERT_EQ(program({"data", "synth", text, "--users", "300", "--items", "150"}).status, 0);
  ASSERT_EQ(program({"data", "build", text, log}).status, 0);
  const Outcome other = program(
      training("changed", 1, {"--resume", "--set", "data.log=" + log, "--set", "batch=48"}));
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.err,
              testing::HasSubstr("was made on a log with users 400, " + log + " has 300"));
}

TEST_F(Training, ARunsFolderCanBeRunAgainAndARunWithNothingLeftKeepsItsTimeline) {
  ASSERT_EQ(program(training("again", 1, {"--set", "steps=4"})).status, 0);
  const std::string timeline = read_file(folder_ / "again/timeline.jsonl");
  const Outcome again = program({"train", (folder_ / "again/run.yaml").string(), "--run-dir",
                                 (folder_ / "again").string(), "--ranks", "1", "--resume"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_THAT(again.err, testing::HasSubstr("resumed at step 4"));
  EXPECT_EQ(read_file(folder_ / "again/timeline.jsonl"), timeline);
}

TEST_F(Training, AStopMetricThatTheModelNeverReportsIsRefused) {
  const Outcome outcome =
      program(training("auc", 1, {"--set", "evaluate.stop_after=1 without auc"}));
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, testing::HasSubstr("better auc, which this model never reports"));
}

TEST_F(Training, SigtermEndsWithACheckpointAndZero) {
  const pid_t child = start(training("stopped", 2, {"--set", "steps=1000000"}), "stopped");
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (losses("stopped").size() < 15 && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  kill(child, SIGTERM);
  const Outcome outcome = finish(child, "stopped");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const int64_t step = outcome.last().at("step");
  EXPECT_TRUE(outcome.last().at("interrupted").get<bool>());
  const std::string more = std::to_string(step + 3);
  const Outcome resumed = program(training("stopped", 2, {"--resume", "--set", "steps=" + more}));
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ(losses("stopped").size(), static_cast<size_t>(step + 3));
  EXPECT_THAT(resumed.err, testing::HasSubstr("resumed at step " + std::to_string(step)));
}

// From the moment that the ranks exist to that of the first steps.
TEST_F(Training, SigtermWhileTheRanksStartEndsWithZero) {
  for (const int milliseconds : {0, 400, 1200}) {
    const std::string run = "starting" + std::to_string(milliseconds);
    const pid_t child = start(training(run, 2, {"--set", "steps=1000000"}), run);
    const std::string children =
        "/proc/" + std::to_string(child) + "/task/" + std::to_string(child) + "/children";
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (read_file(children).empty() && std::chrono::steady_clock::now() < give_up) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    kill(child, SIGTERM);
    const Outcome outcome = finish(child, run);
    ASSERT_EQ(outcome.status, 0) << milliseconds << " ms: " << outcome.err;
    EXPECT_TRUE(outcome.last().at("interrupted").get<bool>());
    const bool stepped = outcome.last().at("step").get<int64_t>() > 0;
    EXPECT_THAT(outcome.err,
                testing::HasSubstr(stepped ? "its checkpoint is saved"
                                           : "before the first step; nothing to save"));
    EXPECT_EQ(fs::exists(folder_ / run / "checkpoints" / "step-00000000"), false);
  }
}

// In bf16 the weights' gradients go past autograd; what is summed must be all of them too.
TEST_F(Training, GradientsAreSummedWhileTheBackwardRuns) {
  for (const std::string precision : {"fp32", "bf16"}) {
    const auto run = [&](const std::string& name, const std::string& overlap) {
      const Outcome outcome = program(
          training(name, 2,
                   {"--set", "plan.collectives.dense_gradient.bucket=4 KiB", "--set", "batch=128",
                    "--set", "plan.collectives.dense_gradient.overlap=" + overlap, "--set",
                    "plan.precision=" + precision}));
      ASSERT_EQ(outcome.status, 0) << outcome.err;
    };
    const std::string name = "overlap_" + precision;
    run(name, "true");
    run(name + "_off", "false");
    EXPECT_EQ(losses(name), losses(name + "_off"));
    const Timeline timeline = read_timeline((folder_ / name / "timeline.jsonl").string());
    int64_t during = 0, backwards = 0;
    for (const TimelineEvent& backward : timeline.events) {
      if (backward.kind != "backward") continue;
      ++backwards;
      for (const TimelineEvent& bucket : timeline.events) {
        during += bucket.rank == backward.rank && bucket.step == backward.step &&
                  bucket.kind == "all_reduce" && bucket.name.starts_with("bucket.") &&
                  bucket.stream == "comm" && bucket.start < backward.end;
      }
    }
    EXPECT_EQ(backwards, 40);  // 20 steps on 2 ranks
    EXPECT_GE(during, backwards);
  }
}

// The trainer, its table, --json and the joined timeline know one exposed communication. All events
// of 20 steps are kept; the evaluations' and the checkpoints' collectives are no step's.
TEST_F(Training, ExposedCommunicationIsThatOfTheTimeline) {
  const Outcome outcome = program(training(
      "exposed", 3, {"--set", "evaluate.every=5 steps", "--set", "plan.tables.item=row_wise"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const double told = outcome.last().at("exposed_communication");
  const Timeline timeline = read_timeline((folder_ / "exposed/timeline.jsonl").string());
  const TimelineStatistics found = statistics(timeline);
  EXPECT_NEAR(told, found.exposed_comm_share, 1e-6);
  EXPECT_GT(told, 0);
  EXPECT_LT(told, 1);
  ASSERT_EQ(found.ranks.size(), 3u);
  EXPECT_EQ(found.steps, 20);
  for (const RankStatistics& rank : found.ranks) {  // a step is work, waits for others, and gaps
    EXPECT_GT(rank.seconds.compute, 0);
    EXPECT_LE(rank.seconds.compute + rank.seconds.exposed_comm + rank.seconds.idle,
              rank.seconds.span * (1 + 1e-9));
  }
  // A full softmax waits for its collectives inside the phase forward, which they are not hidden by.
  EXPECT_TRUE(
      std::any_of(timeline.events.begin(), timeline.events.end(), [](const TimelineEvent& e) {
        return e.stream == "compute" && e.kind == "wait" && e.name == "softmax.hidden";
      }));
  char row[16];
  std::snprintf(row, sizeof row, "%.1f %%\n", 100 * told);
  EXPECT_THAT(outcome.err, testing::ContainsRegex(std::string("exposed communication +") + row));
}

TEST_F(Training, LeavesAReportAndItsInputs) {
  const Outcome outcome = program(training("files", 1, {"--set", "evaluate.every=5 steps"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* file :
       {"report.html", "plan.yaml", "run.yaml", "model.yaml", "timeline.json", "metrics.jsonl"}) {
    EXPECT_GT(fs::file_size(folder_ / "files" / file), 0u) << file;
  }
  EXPECT_THAT(outcome.err, testing::HasSubstr("\ntest events"));  // the tables are not lost
  const json last = outcome.last();
  for (const char* key :
       {"step", "epoch", "loss", "hr_at_10", "ndcg_at_10", "hr_at_10_unseen", "ndcg_at_10_unseen",
        "hr_at_10_later", "ndcg_at_10_later", "popularity_ndcg_at_10", "rules_ndcg_at_10",
        "samples_per_s", "tokens_per_s", "targets_per_s", "step_ms_p50", "run_dir"}) {
    EXPECT_TRUE(last.contains(key)) << key;
  }
  EXPECT_EQ(last.at("loss").get<double>(), losses("files").back());
}

TEST_F(Training, AFolderWithCheckpointsIsNotOverwritten) {
  ASSERT_EQ(program(training("taken", 1)).status, 0);
  const Outcome outcome = program(training("taken", 1));
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, testing::HasSubstr("--resume"));
}

TEST_F(Training, EarlyStoppingTestsTheBestWeights) {
  const Outcome outcome = program(
      training("early", 2,
               {"--set", "evaluate.every=4 steps", "--set", "evaluate.stop_after=1 without ndcg@10",
                "--set", "steps=400", "--set", "dense_optimizer.adamw.lr=0.2"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json last = outcome.last();
  EXPECT_TRUE(last.at("stopped_early").get<bool>());
  EXPECT_LT(last.at("best_step").get<int64_t>(), last.at("step").get<int64_t>());
}

}  // namespace
}  // namespace tautline::train
