#include "tautline/comm/launch.h"

#include <gmock/gmock.h>
#include <map>

#include <gtest/gtest.h>

#include "tautline/base/error.h"

namespace tautline::comm {
namespace {

using Variables = std::map<std::string, std::string>;

GetVariable from(const Variables& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

Launch detect(const Variables& variables, const std::string& which = "auto") {
  return detect_launch(which, from(variables));
}

std::string error_of(const Variables& variables, const std::string& which = "auto") {
  try {
    detect(variables, which);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"GROUP_RANK", "1"},
                             {"MASTER_ADDR", "head"},
                             {"MASTER_PORT", "29501"},
                             {"TORCHELASTIC_RUN_ID", "job7"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

const Variables kSlurm = {{"SLURM_PROCID", "5"},
                          {"SLURM_STEP_NUM_TASKS", "6"},
                          {"SLURM_NTASKS", "99"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_STEP_ID", "3"},
                          {"SLURM_JOB_ID", "17"},
                          {"SLURM_STEP_NUM_NODES", "3"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x3)"},
                          {"SLURM_STEP_NODELIST", "gpu[07-09]"}};

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "4711"}};

Variables operator+(Variables a, const Variables& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

TEST(Launch, NoVariablesIsASingleProcess) {
  const Launch launch = detect({});
  EXPECT_EQ(launch, Launch{});
  EXPECT_EQ(describe(launch), "one rank, no launcher");
}

TEST(Launch, TorchrunWithTheAgentsStore) {
  const Launch launch = detect(kTorchrun);
  EXPECT_EQ(launch.launcher, "torchrun");
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.node, 1);
  EXPECT_TRUE(launch.agent_store);
  EXPECT_EQ(launch.store_prefix, "/worker/attempt_2");
  EXPECT_EQ(describe(launch),
            "rank 3 of 4 (local 1 of 2, node 1) by torchrun, job job7, the launcher's store at "
            "head:29501");
}

TEST(Launch, PlainVariablesNeedNoTorchrun) {
  const Launch launch =
      detect({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1234"}});
  EXPECT_EQ(launch.launcher, "environment");
  EXPECT_FALSE(launch.agent_store);
  EXPECT_EQ(launch.local_world, 1);
  EXPECT_EQ(launch.node, -1);
}

TEST(Launch, SlurmReadsTheStepAndExpandsTheNodeList) {
  const Launch launch = detect(kSlurm);
  EXPECT_EQ(launch.launcher, "slurm");
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.world, 6);
  EXPECT_EQ(launch.local_world, 2);
  EXPECT_EQ(launch.node, 2);
  EXPECT_EQ(launch.master_addr, "gpu07");
  EXPECT_EQ(launch.master_port, port_of_job("slurm17.3"));
  EXPECT_EQ(
      detect(kSlurm + Variables{{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "4000"}}).master_port,
      4000);
}

TEST(Launch, InsideABatchScriptWithoutSrunItIsOneProcess) {
  Variables batch = kSlurm;
  batch.erase("SLURM_STEP_ID");
  EXPECT_EQ(detect(batch).launcher, "single");
  batch["SLURM_STEP_ID"] = "4294967291";
  EXPECT_EQ(detect(batch).launcher, "single");
}

TEST(Launch, OpenMpiOnOneNodeAndOnSeveral) {
  const Launch launch = detect(kOpenMpi);
  EXPECT_EQ(launch.launcher, "openmpi");
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.master_addr, "127.0.0.1");
  EXPECT_EQ(launch.master_port, port_of_job("openmpi4711"));
  const Variables two_nodes = kOpenMpi + Variables{{"OMPI_COMM_WORLD_SIZE", "4"}};
  EXPECT_THAT(error_of(two_nodes), testing::HasSubstr("MASTER_ADDR"));
  EXPECT_EQ(detect(two_nodes + Variables{{"MASTER_ADDR", "n1"}}).master_addr, "n1");
}

TEST(Launch, PmiFamily) {
  EXPECT_EQ(detect({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}}).launcher, "pmi");
  const Launch pals = detect({{"PALS_RANKID", "2"},
                              {"PALS_SIZE", "4"},
                              {"PALS_LOCAL_RANKID", "0"},
                              {"PALS_LOCAL_SIZE", "2"},
                              {"MASTER_ADDR", "x"}});
  EXPECT_EQ(pals.rank, 2);
  EXPECT_EQ(pals.local_rank, 0);
}

TEST(Launch, Order) {
  EXPECT_EQ(detect(kTorchrun + kSlurm + kOpenMpi).launcher, "torchrun");
  EXPECT_EQ(detect(kSlurm + Variables{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).launcher, "slurm");
  EXPECT_EQ(detect(kTorchrun + Variables{{"TAUTLINE_LAUNCHER", "local"}}).launcher, "local");
  EXPECT_EQ(detect(kTorchrun + kSlurm, "slurm").launcher, "slurm");
  EXPECT_EQ(detect(kTorchrun, "single"), Launch{});
  // A rank of our own launcher is told `--launcher single` as the launcher was.
  EXPECT_EQ(detect(kTorchrun + Variables{{"TAUTLINE_LAUNCHER", "local"}}, "single").launcher,
            "local");
}

// mpirun inside a Slurm job starts its daemons with srun, so the ranks inherit the daemons' step.
TEST(Launch, MpirunInsideASlurmJobIsOpenMpi) {
  EXPECT_EQ(detect(kSlurm + kOpenMpi).launcher, "openmpi");
  EXPECT_EQ(detect(kSlurm + kOpenMpi + Variables{{"OMPI_COMM_WORLD_SIZE", "6"}}).launcher, "slurm");
}

TEST(Launch, ErrorsNameTheVariable) {
  EXPECT_THAT(error_of(kTorchrun + Variables{{"RANK", "two"}}),
              testing::HasSubstr("RANK of torchrun is 'two'"));
  EXPECT_THAT(error_of(kTorchrun + Variables{{"RANK", "-1"}}), testing::HasSubstr("'-1'"));
  EXPECT_THAT(error_of(kTorchrun + Variables{{"RANK", "4"}}),
              testing::HasSubstr("rank 4 is not below"));
  EXPECT_THAT(error_of({}, "slurm"), testing::HasSubstr("SLURM_PROCID"));
  EXPECT_THAT(error_of({}, "mpirun"), testing::HasSubstr("no launcher 'mpirun'"));
  EXPECT_THAT(error_of(kTorchrun + Variables{{"MASTER_PORT", "70000"}}),
              testing::HasSubstr("70000"));
}

TEST(Environment, HonoursWhatUsersSet) {
  const Environment environment = read_environment(
      from({{"NO_COLOR", "1"}, {"OMP_NUM_THREADS", "3"}, {"TERM", "xterm"}, {"TMPDIR", "/t"}}));
  EXPECT_TRUE(environment.no_color);
  EXPECT_FALSE(environment.dumb_terminal);
  EXPECT_EQ(environment.omp_num_threads, 3);
  EXPECT_EQ(environment.tmpdir, "/t");
  EXPECT_FALSE(read_environment(from({{"NO_COLOR", ""}})).no_color);  // empty counts as not set
  EXPECT_EQ(read_environment(from({})).tmpdir, "/tmp");
}

}  // namespace
}  // namespace tautline::comm
