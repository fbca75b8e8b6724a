// The program as scripts see it: exit statuses, one sentence on standard error, what it prints.
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tautline/base/config.h"
#include "tautline/plan/plan_fields.h"
#include "tautline/workload/workload_fields.h"

namespace tautline {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

struct Outcome {
  int status = -1;
  std::string out, error;
};

class Program : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tautline_cli_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string write(const std::string& name, const std::string& text) const {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name) << text;
    return (dir_ / name).string();
  }
  static std::string text_of(const fs::path& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  Outcome run(const std::string& arguments, const std::string& out = "") const {
    const std::string command = "cd " TAUTLINE_SOURCE_DIR " && " TAUTLINE_BINARY_DIR "/tautline " +
                                arguments + " >" + (out.empty() ? (dir_ / "out").string() : out) +
                                " 2>" + (dir_ / "error").string();
    const int raw = std::system(command.c_str());
    return {WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw), text_of(dir_ / "out"),
            text_of(dir_ / "error")};
  }
  /// The user's error: status 2, nothing on standard output, one line that says it.
  void expect_user_error(const std::string& arguments, const std::string& says) const {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_TRUE(outcome.error.starts_with("tautline: ")) << outcome.error;
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    EXPECT_THAT(outcome.error, HasSubstr(says)) << arguments;
  }
  /// A folder with the statistics of a built log: all that planning needs of it.
  std::string log_folder() const {
    LogStatistics log;
    log.name = "toy";
    log.users = 1000;
    log.events = 50'000;
    log.shards = 1;
    log.length = {5, 40, 90, 200, 400, 50, 3.7, 0.6};
    log.vocabularies["item"] = {5000, 1.0, 0.01, 0.2};
    write("log/workload.yaml", to_yaml(log));
    return (dir_ / "log").string();
  }

  fs::path dir_;
};

TEST_F(Program, HelpAndVersionAreNoErrors) {
  const Outcome help = run("--help");
  EXPECT_EQ(help.status, 0);
  for (const char* verb : {"data", "train", "plan", "config"})
    EXPECT_THAT(help.out, HasSubstr(verb));
  EXPECT_EQ(run("train --help").status, 0);
  const std::string build = run("data build --help").out;
  EXPECT_THAT(build, testing::ContainsRegex("\n  --no-header +line 1 is an event"));
  EXPECT_THAT(build, HasSubstr("(s by default): s, ms, us, ns\n"));
  for (const char* ugly : {"{", "INT", "TEXT:"}) EXPECT_THAT(build, Not(HasSubstr(ugly)));
  EXPECT_THAT(run("--version").out, HasSubstr("tautline 0."));
}

TEST_F(Program, AWrongCommandLineIsOneSentence) {
  expect_user_error("", "`tautline --help` lists what is valid");
  expect_user_error("trian x.yaml", "trian");
  expect_user_error("train", "RUN");
  expect_user_error("train configs/runs/log.yaml --rnaks 2", "--rnaks");
  expect_user_error("train configs/runs/log.yaml --ranks 0",
                    "tautline: --ranks must be a whole number of 1 or more, found '0'; `tautline");
  for (const char* verb : {"train", "plan"})
    expect_user_error(verb + std::string(" configs/runs/log.yaml --ranks two"),
                      "tautline: --ranks must be a whole number of 1 or more, found 'two'; `");
  expect_user_error("train configs/runs/log.yaml --ranks 2_000_000",
                    "--ranks must be a whole number from 1 to 1_000_000, found '2_000_000'");
  expect_user_error("train configs/runs/log.yaml --ranks", "tautline: --ranks needs a value; `");
  expect_user_error("train configs/runs/log.yaml --ranks 2 --ranks 3",
                    "tautline: --ranks is given more than once; `");
  expect_user_error("train configs/runs/log.yaml --resume=maybe", "--resume takes no value");
  expect_user_error("train configs/runs/log.yaml --launcher torchrunn",
                    "--launcher cannot be 'torchrunn'; did you mean 'torchrun'? (valid: auto, ");
  expect_user_error("data build log out --threads x",
                    "--threads must be a whole number of 0 or more, found 'x'");
  expect_user_error("data build log out --time-unit h", "--time-unit cannot be 'h'; valid: s, ms,");
  expect_user_error("data synth log.csv --seed -1", "--seed must be a whole number of 0 or more");
  expect_user_error("data synth log.csv --events-mean 0",
                    "--events-mean must be a number above 0, found '0'");
  expect_user_error("data", "`tautline data --help`");
  expect_user_error("data build one", "OUT");
  expect_user_error("config show configs/runs/log.yaml --set", "--set needs a value");
}

TEST_F(Program, ATypoInAConfigSaysWhereAndWhatIsNear) {
  const std::string run_file = write("run.yaml",
                                     "model: configs/models/sasrec.yaml\n"
                                     "data: {log: somewhere}\n"
                                     "epochs: 2\n"
                                     "evaluate: {evry: 1 epoch}\n");
  expect_user_error("train " + run_file,
                    run_file + ":4:12: unknown key 'evry' in 'evaluate'; did you mean 'every'?");
  expect_user_error("plan " + run_file, "did you mean 'every'?");
  expect_user_error("config show " + run_file, "did you mean 'every'?");
  expect_user_error("train configs/runs/log.yaml --set data.log=x --set bacth=3",
                    "--set bacth=3: unknown key 'bacth'; did you mean 'batch'?");
  expect_user_error("train absent.yaml", "cannot read absent.yaml: No such file");
}

TEST_F(Program, ATimeColumnThatIsNoneIsToldInOneLine) {
  const std::string log = write("log.csv", "user,item,rating\n1,1,4\n1,2,5\n1,3,3\n2,1,1\n");
  const std::string build = "data build " + log + " " + (dir_ / "built").string();
  const Outcome wrong = run(build + " --time rating");
  EXPECT_EQ(wrong.status, 0);
  EXPECT_THAT(wrong.error,
              HasSubstr("\nwarning: all times in the column 'rating' lie before 1971"));
}

TEST_F(Program, PathsThatNoFileSystemTakesAreOneSentence) {
  const std::string log = write("log.csv", "user,item,time\n1,1,4\n");
  const std::string out = (dir_ / "built").string();
  for (const char* link : {"round", "round.csv"}) fs::create_symlink(link, dir_ / link);
  const std::string name(300, 'n'), path(5000, 'p');
  for (const std::string& bad :
       {(dir_ / name).string(), (dir_ / path).string(), "file://" + (dir_ / path).string(),
        (dir_ / "round").string(), (dir_ / "round/below").string()}) {
    expect_user_error("data build " + bad + " " + out, dir_.string());
    expect_user_error("data build " + log + " " + bad, dir_.string());
    expect_user_error("data build " + log + " " + bad + " --overwrite", dir_.string());
    expect_user_error("data build " + log + " " + out + " --scratch " + bad, dir_.string());
    expect_user_error("data synth " + bad + ".csv --users 5", dir_.string());
  }
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(Program, FilesWhoseNamesAreNoUtf8AreRead) {
  const std::string log = write("caf\xe9.csv", "user,item,time\n1,1,4\n");
  const std::string out = (dir_ / "b\xfc").string();
  EXPECT_EQ(run("data build " + log + " " + out).status, 0);
  EXPECT_THAT(run("config show " + out + "/workload.yaml").out, HasSubstr("\"caf\\\\xe9\""));
  expect_user_error("data build " + log + "x " + out, "caf\\xe9.csvx");
}

TEST_F(Program, ADelimiterIsOneByte) {
  const std::string build = "data build log.csv out --delimiter ";
  for (const char* wrong : {"';;'", "'\xc2\xa7'", "'\"'", "'\n'"})
    expect_user_error(build + wrong,
                      "is not one character, of one byte and neither a quote nor a line end");
}

TEST_F(Program, TrainingNeedsALog) {
  expect_user_error("train configs/runs/log.yaml", "data.log is missing");
  expect_user_error("train configs/runs/log.yaml --set data.log=" + (dir_ / "nothing").string(),
                    "nothing");
}

TEST_F(Program, AFlagAndASetThatDisagreeAreAnError) {
  const std::string log = log_folder();
  const std::string ranks =
      " configs/runs/log.yaml --ranks 2 --set data.log=" + log + " --set ranks=";
  for (const char* verb : {"train", "plan"})
    expect_user_error(verb + ranks + "3",
                      "--ranks 2 and --set ranks=3 say different things; leave one of them out");
  for (const char* same : {"2", "0"}) EXPECT_EQ(run("plan" + ranks + same).status, 0);
  const std::string run_dir = (dir_ / "run").string();
  expect_user_error("train configs/runs/log.yaml --run-dir " + run_dir + " --set data.log=" + log +
                        " --set run_dir=other",
                    "--run-dir " + run_dir + " and --set run_dir=other say different things");
}

TEST_F(Program, ConfigShowSaysWhereEachValueCameFrom) {
  const Outcome shown =
      run("config show configs/runs/log.yaml --set seed=7 --set model.backbone.layers=3");
  EXPECT_EQ(shown.status, 0) << shown.error;
  EXPECT_THAT(shown.out, testing::ContainsRegex("\nseed +7 +--set +of everything random\n"));
  EXPECT_THAT(shown.out, testing::ContainsRegex("\ncheckpoint.keep +3 +configs/runs/log.yaml:"));
  EXPECT_THAT(shown.out, testing::ContainsRegex("\ndevice +auto +default"));
  EXPECT_THAT(shown.out, testing::ContainsRegex("\nbackbone.layers +3 +--set"));
}

TEST_F(Program, ConfigShowKnowsEveryKindOfFile) {
  for (const char* folder : {"configs/models", "configs/runs", "configs/clusters"})
    for (const auto& file : fs::directory_iterator(fs::path(TAUTLINE_SOURCE_DIR) / folder)) {
      const Outcome shown = run("config show " + file.path().string() + " --yaml");
      EXPECT_EQ(shown.status, 0) << shown.error;
      const std::string again = write("again.yaml", shown.out);
      EXPECT_EQ(run("config diff " + file.path().string() + " " + again).out, "");
    }
  EXPECT_THAT(run("config show " + log_folder() + "/workload.yaml").out,
              testing::ContainsRegex("vocabularies.item.size +5000"));
  expect_user_error("config show " + write("other.yaml", "x: 1\n"), "say which with --kind");
}

TEST_F(Program, WhatCannotBePrintedIsNoSuccess) {
  const std::string log = write("log.csv", "user,item,time\n1,1,4\n1,2,5\n1,3,6\n2,1,7\n");
  for (const std::string& verb :
       {std::string("config show configs/models/log.yaml"),
        std::string("config diff configs/models/peer_s.yaml configs/models/peer_m.yaml"),
        "plan configs/runs/log.yaml --set device=cpu --set data.log=" + log_folder(),
        "data synth " + (dir_ / "made.csv").string() + " --users 5",
        "data build " + log + " " + (dir_ / "built").string()}) {
    const Outcome outcome = run(verb, "/dev/full");
    EXPECT_EQ(outcome.status, 2) << verb;
    EXPECT_THAT(outcome.error, HasSubstr("tautline: standard output cannot be written: No space "
                                         "left on device"))
        << verb;
  }
}

TEST_F(Program, ConfigDiffNamesWhatDiffers) {
  const Outcome diff = run("config diff configs/models/peer_s.yaml configs/models/peer_m.yaml");
  EXPECT_EQ(diff.status, 0);
  EXPECT_THAT(diff.out, HasSubstr("backbone.width: 512 -> 1024\n"));
  EXPECT_THAT(diff.out, Not(HasSubstr("tables.item.dim")));
}

TEST_F(Program, PlanPrintsSavesAndReadsBack) {
  const std::string log = log_folder(), saved = (dir_ / "plan.yaml").string();
  const std::string base =
      "plan configs/runs/log.yaml --set device=cpu --set data.log=" + log + " ";
  const Outcome made = run(base + "--ranks 3 --out " + saved);
  ASSERT_EQ(made.status, 0) << made.error;
  EXPECT_THAT(made.out, HasSubstr("for log on 3 ranks"));
  EXPECT_THAT(made.out, testing::ContainsRegex("item +row_wise"));
  EXPECT_EQ(read_config<Plan>(saved).devices, 3);
  EXPECT_EQ(run(base + "--ranks 3 --yaml").out, text_of(saved));
  EXPECT_EQ(run(base + "--ranks 3 --yaml --set plan.file=" + saved).out, text_of(saved));
  expect_user_error(base + "--ranks 2 --set plan.file=" + saved,
                    "this Plan was made for 3 ranks, not for 2; leave plan.file out");
  expect_user_error(base + "--ranks 2 --set plan.tables.itme=row_wise", "did you mean 'item'?");
  expect_user_error(base + "--ranks 3 --out /nowhere/plan.yaml",
                    "cannot write /nowhere/plan.yaml: No such file");
}

}  // namespace
}  // namespace tautline
