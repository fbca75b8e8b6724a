#include "tautline/comm/launch.h"

#include <algorithm>
#include <charconv>
#include <signal.h>
#include <sstream>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tautline/base/error.h"

extern char** environ;

namespace tautline::comm {
namespace {

// What a launcher's variables say, with errors that name the variable.
class Variables {
 public:
  Variables(const GetVariable& get, std::string launcher)
      : get_(get), launcher_(std::move(launcher)) {}

  bool has(const std::string& name) const { return get_(name).has_value(); }
  std::string text(const std::string& name, const std::string& otherwise = "") const {
    return get_(name).value_or(otherwise);
  }
  /// The first of `names` that is set.
  std::optional<int> find(const std::vector<std::string>& names) const {
    for (const std::string& name : names)
      if (const auto value = get_(name)) return number(name, *value);
    return std::nullopt;
  }
  int need(const std::vector<std::string>& names) const {
    if (const auto value = find(names)) return *value;
    throw user_error("the variable ", names.front(), " of ", launcher_,
                     " is not set; start the ranks with it, or pass --launcher single");
  }

 private:
  int number(const std::string& name, const std::string& value) const {
    int result = 0;
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, result);
    if (error != std::errc() || stop != end || result < 0)
      throw user_error("the variable ", name, " of ", launcher_, " is '", value,
                       "'; a whole number from 0 on is right");
    return result;
  }
  const GetVariable& get_;
  std::string launcher_;
};

void set_store(Launch& launch, const Variables& variables, const std::string& host_of_rank_0) {
  launch.master_addr = variables.text("MASTER_ADDR", host_of_rank_0);
  if (launch.world > 1 && launch.master_addr.empty())
    throw user_error(launch.launcher,
                     " does not say on which host rank 0 runs; set MASTER_ADDR "
                     "to that host for every rank (Open MPI: mpirun -x MASTER_ADDR=HOST)");
  launch.master_port =
      variables.find({"MASTER_PORT"}).value_or(port_of_job(launch.launcher + launch.job));
}

Launch from_torchrun(const Variables& variables) {
  Launch launch;
  launch.rank = variables.need({"RANK"});
  launch.world = variables.need({"WORLD_SIZE"});
  launch.local_rank = variables.find({"LOCAL_RANK"}).value_or(0);
  launch.local_world = variables.find({"LOCAL_WORLD_SIZE"}).value_or(1);
  launch.node = variables.find({"GROUP_RANK"}).value_or(-1);
  launch.master_addr = variables.text("MASTER_ADDR", "127.0.0.1");
  launch.master_port = variables.find({"MASTER_PORT"}).value_or(29500);
  launch.agent_store = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  launch.restarts = variables.find({"TORCHELASTIC_RESTART_COUNT"}).value_or(0);
  if (launch.agent_store)
    launch.store_prefix = "/worker/attempt_" + std::to_string(launch.restarts);
  launch.job = variables.text("TORCHELASTIC_RUN_ID");
  launch.error_file = variables.text("TORCHELASTIC_ERROR_FILE");
  return launch;
}

Launch from_slurm(const Variables& variables) {
  Launch launch;
  launch.launcher = "slurm";
  launch.rank = variables.need({"SLURM_PROCID"});
  launch.world = variables.need({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"});
  launch.local_rank = variables.need({"SLURM_LOCALID"});
  launch.node = variables.need({"SLURM_NODEID"});
  launch.restarts = variables.find({"SLURM_RESTART_COUNT"}).value_or(0);
  launch.job = variables.text("SLURM_JOB_ID") + "." + variables.text("SLURM_STEP_ID", "0");
  const std::vector<int> tasks = expand_task_counts(
      variables.text("SLURM_STEP_TASKS_PER_NODE", variables.text("SLURM_TASKS_PER_NODE")));
  if (launch.node < static_cast<int>(tasks.size()))
    launch.local_world = tasks[static_cast<size_t>(launch.node)];
  const std::string list =
      variables.text("SLURM_STEP_NODELIST", variables.text("SLURM_JOB_NODELIST"));
  const int nodes = variables.find({"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}).value_or(1);
  set_store(launch, variables,
            nodes == 1     ? "127.0.0.1"
            : list.empty() ? ""
                           : expand_nodelist(list).front());
  return launch;
}

// Open MPI and the PMI family: ranks by number, but no host of rank 0 unless all share a node.
Launch from_mpi(const Variables& variables, const std::string& name) {
  const bool openmpi = name == "openmpi";
  Launch launch;
  launch.launcher = name;
  launch.rank = openmpi ? variables.need({"OMPI_COMM_WORLD_RANK"})
                        : variables.need({"PMI_RANK", "PALS_RANKID", "MV2_COMM_WORLD_RANK"});
  launch.world = openmpi ? variables.need({"OMPI_COMM_WORLD_SIZE"})
                         : variables.need({"PMI_SIZE", "PALS_SIZE", "MV2_COMM_WORLD_SIZE"});
  launch.local_rank = openmpi ? variables.need({"OMPI_COMM_WORLD_LOCAL_RANK"})
                              : variables
                                    .find({"MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID",
                                           "MV2_COMM_WORLD_LOCAL_RANK"})
                                    .value_or(launch.rank);
  launch.local_world = openmpi ? variables.need({"OMPI_COMM_WORLD_LOCAL_SIZE"})
                               : variables
                                     .find({"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE",
                                            "MV2_COMM_WORLD_LOCAL_SIZE"})
                                     .value_or(launch.world);
  launch.node = launch.local_world == launch.world ? 0 : -1;
  for (const char* id :
       {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PALS_APID", "PMI_JOBID", "HYDI_CONTROL_FD"})
    if (launch.job.empty()) launch.job = variables.text(id);
  set_store(launch, variables, launch.node == 0 ? "127.0.0.1" : "");
  return launch;
}

std::string choose(const Variables& variables) {
  if (variables.text("TAUTLINE_LAUNCHER") == "local") return "local";
  if (variables.has("TORCHELASTIC_RUN_ID") || variables.has("TORCHELASTIC_RESTART_COUNT"))
    return "torchrun";
  if (variables.has("RANK") && variables.has("WORLD_SIZE")) return "environment";
  // A step, not only a job: inside `sbatch` or `salloc` without srun a program is a single process.
  // Under mpirun inside a Slurm job the step is mpirun's own daemons: the ranks are Open MPI's.
  const bool step = variables.has("SLURM_PROCID") && variables.has("SLURM_STEP_ID") &&
                    variables.text("SLURM_STEP_ID") != "4294967291";  // the batch script's own step
  const bool openmpi = variables.has("OMPI_COMM_WORLD_RANK");
  const bool daemons = openmpi && variables.find({"OMPI_COMM_WORLD_SIZE"}) !=
                                      variables.find({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  if (step && !daemons) return "slurm";
  if (openmpi) return "openmpi";
  for (const char* name : {"PMI_RANK", "PALS_RANKID", "MV2_COMM_WORLD_RANK"})
    if (variables.has(name)) return "pmi";
  return "single";
}

void check(const Launch& launch) {
  const auto wrong = [&](const char* what, int value, const char* of, int bound) {
    return user_error("the variables of ", launch.launcher, " contradict each other: ", what, " ",
                      value, " is not below ", of, " ", bound);
  };
  if (launch.rank >= launch.world)
    throw wrong("rank", launch.rank, "the number of ranks", launch.world);
  if (launch.local_rank >= launch.local_world)
    throw wrong("local rank", launch.local_rank, "the number of local ranks", launch.local_world);
  if (launch.local_world > launch.world)
    throw wrong("the number of local ranks", launch.local_world, "1 + the number of ranks",
                launch.world + 1);
  if (launch.world > 1 && (launch.master_port < 1 || launch.master_port > 65535))
    throw user_error("the store's port ", launch.master_port, " is none; 1 to 65535 are");
}

}  // namespace

std::optional<std::string> process_variable(const std::string& name) {
  const char* value = ::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

Launch detect_launch(const std::string& which, const GetVariable& get) {
  const std::vector<std::string> known = {"auto",        "single", "local",   "torchrun",
                                          "environment", "slurm",  "openmpi", "pmi"};
  if (std::find(known.begin(), known.end(), which) == known.end())
    throw user_error("there is no launcher '", which,
                     "'; auto, single, torchrun, environment, slurm, openmpi and pmi are");
  // A rank that our own launcher started says again how the launcher was called: taken at its word
  // (`single`), it would start ranks of its own, and these theirs.
  const std::string found = choose(Variables(get, "this process"));
  const std::string name = which == "auto" || found == "local" ? found : which;
  const Variables variables(get, name);
  Launch launch;
  if (name == "slurm") {
    launch = from_slurm(variables);
  } else if (name == "openmpi" || name == "pmi") {
    launch = from_mpi(variables, name);
  } else if (name != "single") {
    launch = from_torchrun(variables);  // local and environment use the same names
    if (name == "local") launch.agent_store = true;
  }
  launch.launcher = name;
  check(launch);
  return launch;
}

std::string describe(const Launch& launch) {
  if (launch.launcher == "single") return "one rank, no launcher";
  std::ostringstream out;
  out << "rank " << launch.rank << " of " << launch.world << " (local " << launch.local_rank
      << " of " << launch.local_world;
  if (launch.node >= 0) out << ", node " << launch.node;
  out << ") by " << launch.launcher;
  if (!launch.job.empty()) out << ", job " << launch.job;
  if (launch.world > 1) {
    out << ", " << (launch.agent_store ? "the launcher's store" : "store of rank 0") << " at "
        << launch.master_addr << ":" << launch.master_port;
  }
  return out.str();
}

Environment read_environment(const GetVariable& get) {
  Environment environment;
  const std::string terminal = get("TERM").value_or("");
  environment.no_color = !get("NO_COLOR").value_or("").empty();
  environment.dumb_terminal = terminal.empty() || terminal == "dumb";
  environment.omp_num_threads =
      std::max(0, std::atoi(get("OMP_NUM_THREADS").value_or("0").c_str()));
  environment.cuda_visible_devices = get("CUDA_VISIBLE_DEVICES").value_or("");
  environment.home = get("HOME").value_or("");
  environment.tmpdir = get("TMPDIR").value_or("/tmp");
  environment.log_level = get("LOGLEVEL").value_or("");
  environment.gloo_interface = get("GLOO_SOCKET_IFNAME").value_or("");
  return environment;
}

std::vector<std::string> local_rank_variables(int rank, int world, int port, int64_t launcher_pid) {
  const auto entry = [](const char* name, int64_t value) {
    return std::string(name) + "=" + std::to_string(value);
  };
  return {"TAUTLINE_LAUNCHER=local",  entry("TAUTLINE_LAUNCHER_PID", launcher_pid),
          entry("RANK", rank),        entry("LOCAL_RANK", rank),
          entry("WORLD_SIZE", world), entry("LOCAL_WORLD_SIZE", world),
          entry("GROUP_RANK", 0),     "MASTER_ADDR=127.0.0.1",
          entry("MASTER_PORT", port)};
}

std::vector<std::string> environment_without_launchers() {
  const std::vector<std::string> names = {
      "RANK",      "WORLD_SIZE",  "LOCAL_RANK",  "LOCAL_WORLD_SIZE",  "GROUP_RANK",
      "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT", "TAUTLINE_LAUNCHER", "TAUTLINE_LAUNCHER_PID"};
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    if (name.rfind("TORCHELASTIC_", 0) == 0) continue;
    if (std::find(names.begin(), names.end(), name) == names.end()) kept.push_back(text);
  }
  return kept;
}

}  // namespace tautline::comm
