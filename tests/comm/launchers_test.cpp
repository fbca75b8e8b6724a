// The real torchrun, mpirun and srun start a program that prints its Launch and does one
// all-reduce; a rank that dies under each of them is named. Skipped only where the launcher is not
// installed.
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <sys/prctl.h>

#include <gtest/gtest.h>

#include "tautline/comm/launch.h"

#include "comm/command.h"

namespace tautline::comm {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

const std::string kProgram = TAUTLINE_BINARY_DIR "/comm_rank_program";

#define NEED(variable, name)                                                        \
  const std::string variable = find_program(name, {environment_folder() + "/bin"}); \
  if (variable.empty()) GTEST_SKIP() << name << " is not installed"

// The pinned Python environment, whose torchrun is that of our libtorch.
std::string environment_folder() {
  std::string folder = run_command({TAUTLINE_SOURCE_DIR "/scripts/environment"}).output;
  while (!folder.empty() && folder.back() == '\n') folder.pop_back();
  return folder;
}

// A port that is free now, for torchrun.
std::string free_port() {
  static int next = 0;
  return std::to_string(port_of_job(std::to_string(::getpid()) + "." + std::to_string(next++)));
}

TEST(Torchrun, RanksFindEachOtherThroughTheAgentsStore) {
  NEED(torchrun, "torchrun");
  const Finished job = run_command({torchrun, "--nproc-per-node", "2", "--master-port", free_port(),
                                    "--no-python", kProgram, "sum"});
  EXPECT_EQ(job.status, 0) << job.output;
  EXPECT_THAT(job.output, HasSubstr("rank 1 of 2 (local 1 of 2, node 0) by torchrun"));
  EXPECT_THAT(job.output, HasSubstr("the launcher's store at"));
  EXPECT_THAT(job.output, HasSubstr("rank 0 sum 3 nodes 1"));
}

// Two agents on loopback: local and global ranks differ.
TEST(Torchrun, TwoNodes) {
  NEED(torchrun, "torchrun");
  const std::string port = free_port();
  const auto node = [&](const char* number) {
    return std::vector<std::string>{torchrun,    "--nnodes",
                                    "2",         "--node-rank",
                                    number,      "--nproc-per-node",
                                    "2",         "--master-addr",
                                    "127.0.0.1", "--master-port",
                                    port,        "--no-python",
                                    kProgram,    "sum"};
  };
  Command first(node("0")), second(node("1"));
  const Finished b = second.finish(), a = first.finish();
  EXPECT_EQ(a.status, 0) << a.output;
  EXPECT_EQ(b.status, 0) << b.output;
  EXPECT_THAT(a.output, HasSubstr("rank 1 of 4 (local 1 of 2, node 0)"));
  EXPECT_THAT(b.output, HasSubstr("rank 2 of 4 (local 0 of 2, node 1)"));
  EXPECT_THAT(b.output, HasSubstr("rank 3 sum 10 nodes 2"));
}

TEST(Torchrun, ShowsTheReasonOfAFailingRank) {
  NEED(torchrun, "torchrun");
  const Finished job = run_command({torchrun, "--nproc-per-node", "2", "--master-port", free_port(),
                                    "--no-python", kProgram, "throw", "1"});
  EXPECT_FALSE(job.timed_out) << job.output;
  EXPECT_NE(job.status, 0);
  EXPECT_THAT(job.output, ContainsRegex("traceback : column 'x' is missing from a.csv"));
}

TEST(Mpirun, RanksFindEachOther) {
  NEED(mpirun, "mpirun");
  const Finished job =
      run_command({mpirun, "--allow-run-as-root", "--oversubscribe", "-np", "3", kProgram, "sum"});
  EXPECT_EQ(job.status, 0) << job.output;
  EXPECT_THAT(job.output, HasSubstr("rank 2 of 3 (local 2 of 3, node 0) by openmpi"));
  EXPECT_THAT(job.output, HasSubstr("rank 1 sum 6 nodes 1"));
}

// Rank 0 hosts the store: its death takes the store along, and is named by that. The survivors note
// mpirun's SIGTERM, as the trainer does, and have until its SIGKILL.
TEST(Mpirun, TheDeathOfTheStoresHostIsNamed) {
  NEED(mpirun, "mpirun");
  const Finished job =
      run_command({mpirun, "--allow-run-as-root", "--oversubscribe", "-np", "3", "--mca",
                   "odls_base_sigkill_timeout", "4", kProgram, "kill", "0"});
  EXPECT_FALSE(job.timed_out) << job.output;
  EXPECT_NE(job.status, 0);
  EXPECT_LT(job.seconds, 30);
  EXPECT_THAT(job.output, ContainsRegex("rank [12]: rank 0 \\(pid [^)]+\\) died"));
}

std::vector<pid_t> children_of_this_process() {
  std::vector<pid_t> children;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    std::ifstream file(entry.path() / "stat");
    std::string line;
    if (!std::getline(file, line)) continue;  // no process, or one that has just ended
    int parent = 0;
    std::sscanf(line.c_str() + line.rfind(')'), ") %*c %d", &parent);
    if (parent == ::getpid()) children.push_back(std::atoi(line.c_str()));
  }
  return children;
}

// One machine's Slurm, as root: munged, slurmctld and slurmd with all their files in a temporary
// folder.
class Slurm {
 public:
  Slurm() {
    // slurmstepd leaves the daemons' process group and would stay, waiting for a controller that is
    // gone: as orphans its like become our children, and end in the destructor.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    const std::string dir = folder_.path();
    std::filesystem::permissions(dir, std::filesystem::perms(0755));
    std::ofstream(dir + "/munge.key") << std::string(1024, 'k');
    std::filesystem::permissions(dir + "/munge.key", std::filesystem::perms(0400));
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    const std::string control = free_port(), daemon = free_port();
    conf_ = dir + "/slurm.conf";
    std::ofstream(conf_)
        << "ClusterName=test\nSlurmctldHost=" << host << "(127.0.0.1)\n"
        << "SlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\n"
        << "AuthInfo=socket=" << dir << "/munge.socket\nCryptoType=crypto/munge\n"
        << "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"
        << "SelectType=select/cons_tres\nReturnToService=2\nMpiDefault=none\n"
        << "SlurmctldPort=" << control << "\nSlurmdPort=" << daemon << "\n"
        << "StateSaveLocation=" << dir << "/state\nSlurmdSpoolDir=" << dir << "/spool\n"
        << "SlurmctldPidFile=" << dir << "/ctld.pid\nSlurmdPidFile=" << dir << "/d.pid\n"
        << "NodeName=" << host << " NodeAddr=127.0.0.1 CPUs=" << std::thread::hardware_concurrency()
        << " State=UNKNOWN\n"
        << "PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:8\n";
    std::filesystem::create_directories(dir + "/state");
    std::filesystem::create_directories(dir + "/spool");
  }

  ~Slurm() {
    daemon_.reset();
    control_.reset();
    munged_.reset();
    // A child's own children come with the next round.
    for (int round = 0; round < 20; ++round) {
      const std::vector<pid_t> left = children_of_this_process();
      for (const pid_t pid : left) {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
      }
      if (left.empty()) break;
    }
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  }

  /// Empty, or what did not start.
  std::string start() {
    const std::string dir = folder_.path();
    munged_.emplace(std::vector<std::string>{
        find_program("munged"), "--foreground", "--force", "--key-file=" + dir + "/munge.key",
        "--socket=" + dir + "/munge.socket", "--pid-file=" + dir + "/munge.pid",
        "--log-file=" + dir + "/munge.log", "--seed-file=" + dir + "/munge.seed"});
    for (int i = 0; i < 100 && !std::filesystem::exists(dir + "/munge.socket"); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    control_.emplace(std::vector<std::string>{find_program("slurmctld"), "-D", "-f", conf_},
                     std::vector<std::string>{"SLURM_CONF=" + conf_});
    daemon_.emplace(std::vector<std::string>{find_program("slurmd"), "-D", "-f", conf_},
                    std::vector<std::string>{"SLURM_CONF=" + conf_});
    std::string state;
    for (int i = 0; i < 100; ++i) {
      state = run({"sinfo", "-h", "-o", "%T"}).output;
      if (state.find("idle") == 0) return "";
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return "node is '" + state + "'\n" + control_->finish(0).output + daemon_->finish(0).output;
  }

  Finished run(std::vector<std::string> arguments, double seconds = 90) {
    return Command(std::move(arguments), {"SLURM_CONF=" + conf_}).finish(seconds);
  }

 private:
  TemporaryFolder folder_;
  std::string conf_;
  std::optional<Command> munged_, control_,
      daemon_;  // killed in reverse order, by their process groups
};

TEST(Srun, RanksFindEachOtherAndADeathIsNamed) {
  for (const char* program : {"srun", "sinfo", "slurmctld", "slurmd", "munged"})
    if (find_program(program).empty()) GTEST_SKIP() << program << " is not installed";
  if (::getuid() != 0) GTEST_SKIP() << "a Slurm of our own needs root";
  if (const std::filesystem::path cgroup = "/sys/fs/cgroup";
      !std::filesystem::exists(cgroup) || std::filesystem::is_empty(cgroup))
    GTEST_SKIP() << "slurmd does not start without a cgroup file system in /sys/fs/cgroup";
  Slurm slurm;
  const std::string trouble = slurm.start();
  ASSERT_EQ(trouble, "");

  const Finished job = slurm.run({"srun", "-n", "2", "--overcommit", kProgram, "sum"});
  EXPECT_EQ(job.status, 0) << job.output;
  EXPECT_THAT(job.output, HasSubstr("rank 1 of 2 (local 1 of 2, node 0) by slurm, job "));
  EXPECT_THAT(job.output, HasSubstr("rank 0 sum 3 nodes 1"));

  const Finished dead =
      slurm.run({"srun", "-n", "3", "--overcommit", "--kill-on-bad-exit=0", kProgram, "kill", "0"});
  EXPECT_FALSE(dead.timed_out) << dead.output;
  EXPECT_NE(dead.status, 0);
  EXPECT_LT(dead.seconds, 30);
  EXPECT_THAT(dead.output, ContainsRegex("rank [12]: rank 0 \\(pid [^)]+\\) died"));
}

}  // namespace
}  // namespace tautline::comm
