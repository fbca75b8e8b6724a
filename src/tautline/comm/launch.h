// How this process was started, and what its rank is. launch.cpp is the only file of the project
// that reads environment variables; what others need of them is in `Environment`.
//
// Order of detection (docs/launch.md): an explicit choice, then our own `--ranks N`, torchrun,
// Slurm, Open MPI, the PMI family (MPICH, Intel MPI, Cray PALS, MVAPICH2), and a single process.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tautline::comm {

struct Launch {
  std::string launcher = "single";  // single, local, torchrun, environment, slurm, openmpi, pmi
  int rank = 0;
  int world = 1;
  int local_rank = 0;   // among the ranks of this node: picks the device
  int local_world = 1;  // ranks of this node
  int node = 0;         // -1: the launcher does not say; the mesh finds it out
  std::string master_addr = "127.0.0.1";
  int master_port = 0;       // 0: no store is needed (a single process)
  bool agent_store = false;  // the launcher hosts the store, rank 0 must not start a server
  std::string store_prefix;  // keys of this attempt
  std::string job;           // the launcher's id of the job; empty: none
  int restarts = 0;          // how often the launcher has started this job anew
  std::string error_file;    // torchrun shows what a failing rank writes there
  bool operator==(const Launch&) const = default;
};

/// Other variables that a program of this kind honours.
struct Environment {
  bool no_color = false;       // NO_COLOR, https://no-color.org
  bool dumb_terminal = false;  // TERM is "dumb" or not set
  int omp_num_threads = 0;     // OMP_NUM_THREADS; 0: not set
  std::string cuda_visible_devices;
  std::string home, tmpdir;    // tmpdir: TMPDIR, or /tmp
  std::string log_level;       // LOGLEVEL
  std::string gloo_interface;  // GLOO_SOCKET_IFNAME
  bool operator==(const Environment&) const = default;
};

/// Reads a variable; the tests pass their own.
using GetVariable = std::function<std::optional<std::string>(const std::string&)>;
std::optional<std::string> process_variable(const std::string& name);

/// `which`: "auto", or the launcher to insist on ("single" ignores all variables).
/// Throws UserError where that launcher's variables are missing, contradict each other, or are no
/// numbers.
Launch detect_launch(const std::string& which = "auto", const GetVariable& get = process_variable);

/// "rank 3 of 8 (local 1 of 2, node 1) by slurm, job 17, store at n01:23456"
std::string describe(const Launch& launch);

Environment read_environment(const GetVariable& get = process_variable);

/// For a rank that our own launcher started: it dies when the launcher dies (PR_SET_PDEATHSIG).
/// Elsewhere nothing. Also hands NCCL's error handling to comm/watch.h. Call once, first in main.
void prepare_process(const Launch& launch);

/// Several threads of this process are going to use groups of their own at the same time. Before the
/// first collective; prepare_process does it too.
void keep_flight_recorder_off();

/// The variables that our own launcher gives to rank `rank` of `world`, beside its own environment.
std::vector<std::string> local_rank_variables(int rank, int world, int port, int64_t launcher_pid);
/// The environment of this process without any launcher's variables, for children.
std::vector<std::string> environment_without_launchers();

/// Hosts of a Slurm node list: "node[01-04,7],login2" is node01 node02 node03 node04 node7 login2.
std::vector<std::string> expand_nodelist(const std::string& list);

/// Slurm's tasks of each node: "2(x2),1" is 2 2 1.
std::vector<int> expand_task_counts(const std::string& counts);

/// A port in [10000, 30000), below the ephemeral range, that every rank derives alike from the job.
int port_of_job(const std::string& job);

}  // namespace tautline::comm
