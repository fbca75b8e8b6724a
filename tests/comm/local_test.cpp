// `--ranks N` with real processes, and with processes that die.
#include "tautline/comm/local.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tautline/base/error.h"

#include "comm/command.h"

namespace tautline::comm {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kProgram = TAUTLINE_BINARY_DIR "/comm_rank_program";
constexpr double kFailureSeconds = 30;  // what docs/launch.md promises

Finished run_ranks(const std::string& ranks, const std::string& mode,
                   const std::string& argument = "") {
  std::vector<std::string> command = {kProgram, "--ranks", ranks, mode};
  if (!argument.empty()) command.push_back(argument);
  return run_command(command);
}

TEST(Local, RanksFindEachOther) {
  const Finished job = run_ranks("3", "sum");
  EXPECT_EQ(job.status, 0) << job.output;
  EXPECT_THAT(job.output, HasSubstr("rank 0 of 3 (local 0 of 3, node 0) by local"));
  EXPECT_THAT(job.output, HasSubstr("rank 0 sum 6 nodes 1"));
  EXPECT_THAT(job.output, HasSubstr("[rank 2] rank 2 sum 6 nodes 1"));
}

class Killed : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Rank, Killed, testing::Values(0, 2));

// The launcher and every survivor name the dead rank.
TEST_P(Killed, IsNamedByLauncherAndSurvivors) {
  const std::string rank = std::to_string(GetParam());
  const Finished job = run_ranks("3", "kill", rank);
  EXPECT_EQ(job.status, 3) << job.output;
  EXPECT_LT(job.seconds, kFailureSeconds);
  RecordProperty("seconds", std::to_string(job.seconds));
  EXPECT_THAT(job.output, testing::ContainsRegex("tautline: rank " + rank +
                                                 " \\(pid [0-9]+\\) was killed by SIGKILL"));
  for (int survivor = 0; survivor < 3; ++survivor)
    if (survivor != GetParam()) {
      EXPECT_THAT(job.output,
                  testing::ContainsRegex("rank " + std::to_string(survivor) + ": rank " + rank +
                                         " \\(pid [0-9]+ on [^)]+\\) died: its process is gone"));
    }
}

TEST(Local, AUsersErrorOnOneRankIsTheJobs) {
  const Finished job = run_ranks("3", "throw", "1");
  EXPECT_EQ(job.status, 2) << job.output;
  EXPECT_THAT(job.output, HasSubstr("\ntautline: column 'x' is missing from a.csv\n"));
  EXPECT_THAT(job.output, testing::ContainsRegex(
                              "rank 2: rank 1 \\(pid [^)]+\\) failed: column 'x' is missing"));
}

TEST(Local, MoreRanksThanAMachineHoldsAreRefusedBeforeAnyStarts) {
  try {
    run_local_ranks({.ranks = 1'000'000, .arguments = {"/bin/true"}});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--ranks 1000000: this machine has "));
  }
}

TEST(Local, ABrokenInvariantIs134) {
  const Finished job = run_ranks("2", "abort", "1");
  EXPECT_EQ(job.status, 134) << job.output;
  EXPECT_THAT(job.output, HasSubstr("was killed by SIGABRT"));
  EXPECT_THAT(job.output, HasSubstr("broken invariant [rank 1]"));
}

TEST(Local, ARankThatLeavesEarlyIsAFailure) {
  const Finished job = run_ranks("2", "early", "1");
  EXPECT_EQ(job.status, 3) << job.output;
  EXPECT_THAT(job.output, testing::ContainsRegex("rank 0: rank 1 \\(pid"));
}

// It lives, so only its silence tells; the launcher has to kill it.
TEST(Local, AFrozenRankEndsTheJob) {
  const Finished job = run_ranks("2", "freeze", "1");
  EXPECT_EQ(job.status, 3) << job.output;
  EXPECT_LT(job.seconds, kFailureSeconds + 5);  // and the start of the job
  EXPECT_THAT(job.output, testing::ContainsRegex("rank 0: rank 1 \\(pid [^)]+\\) died or hangs"));
}

class Stopped : public testing::TestWithParam<std::pair<int, int>> {};
// A terminal that goes away sends SIGHUP more than once; the third SIGTERM would kill.
INSTANTIATE_TEST_SUITE_P(Signal, Stopped,
                         testing::Values(std::pair{SIGTERM, 1}, std::pair{SIGHUP, 4}));

TEST_P(Stopped, AllRanksStopAtOneStep) {
  ::signal(SIGHUP, SIG_DFL);  // not as nohup left it
  Command job({kProgram, "--ranks", "3", "steps", "60"});
  for (const char* who : {"rank 0 sum", "[rank 1] stepping", "[rank 2] stepping"})
    ASSERT_TRUE(job.wait_for(who));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  for (int i = 0; i < GetParam().second; ++i) {
    ::kill(job.pid(), GetParam().first);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const Finished end = job.finish();
  EXPECT_EQ(end.status, 0) << end.output;
  const size_t at = end.output.find("stops at step ");
  ASSERT_NE(at, std::string::npos) << end.output;
  const std::string step = end.output.substr(at, end.output.find('\n', at) - at);
  for (const char* rank : {"0 ", "1 ", "2 "})
    EXPECT_THAT(end.output, HasSubstr("rank " + std::string(rank) + step + "\n"));
}

TEST(Local, UnderNohupAClosedTerminalStopsNothing) {
  Command job({"nohup", kProgram, "--ranks", "2", "steps", "60"});
  for (const char* who : {"rank 0 sum", "[rank 1] stepping"}) ASSERT_TRUE(job.wait_for(who));
  ::kill(-job.pid(), SIGHUP);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // ten steps
  job.wait_for("nothing", 0);                                   // reads what there is
  EXPECT_FALSE(job.wait_for("stops at step", 0));
  ::kill(job.pid(), SIGTERM);
  const Finished end = job.finish();
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_THAT(end.output, HasSubstr("rank 1 stops at step "));
}

TEST(Local, RanksDieWithTheirLauncher) {
  Command job({kProgram, "--ranks", "2", "steps", "60"});
  ASSERT_TRUE(job.wait_for("[rank 1] stepping"));
  ::kill(job.pid(), SIGKILL);
  // The pipe closes when the last rank that holds it is gone.
  const Finished end = job.finish();
  EXPECT_EQ(end.status, 128 + SIGKILL);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const Finished left = run_command({"pgrep", "-f", "comm_rank_program --ranks 2 steps 60"});
  EXPECT_NE(left.status, 0) << left.output;
}

}  // namespace
}  // namespace tautline::comm
