// tautline train: reads the run, starts local ranks where asked, and runs this process's rank.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <unistd.h>

#include "tautline/base/error.h"
#include "tautline/base/utf8.h"
#include "tautline/cli/flag.h"
#include "tautline/cli/verbs.h"
#include "tautline/comm/local.h"
#include "tautline/comm/mesh.h"
#include "tautline/comm/stop.h"
#include "tautline/data/uri.h"
#include "tautline/plan/plan_fields.h"
#include "tautline/train/exchange.h"
#include "tautline/train/job.h"
#include "tautline/train/memory.h"
#include "tautline/train/run_fields.h"
#include "tautline/train/run_files.h"
#include "tautline/train/summary.h"
#include "tautline/train/trainer.h"

namespace tautline::cli {
namespace {

comm::Launch detect(const TrainOptions& options) {
  return comm::detect_launch(options.launcher == "mpi" ? "openmpi" : options.launcher);
}

/// Local ranks share a machine and come to the same error, which rank 0 says for all.
at::Device device_of(const RunConfig& run, const comm::Launch& launch) {
  try {
    return train::choose_device(run.device, launch);
  } catch (const UserError&) {
    if (launch.launcher == "local" && launch.rank > 0) _exit(kExitUser);
    throw;
  }
}

/// The run that a folder keeps, with its model beside it: what --resume goes on with by itself.
std::string saved_run(const std::string& run_dir) {
  std::string saved = run_dir + "/run.yaml";
  std::error_code error;  // what keeps it from being looked at is told where it is read
  if (!std::filesystem::exists(saved, error) && !error)
    throw user_error("--resume without RUN goes on with the run that a folder keeps, and ", run_dir,
                     " keeps none: there is no ", saved, "; give the run's YAML");
  return saved;
}

std::string joined_arguments(const std::vector<std::string>& arguments) {
  std::string text;
  for (const std::string& argument : arguments) text += (text.empty() ? "" : " ") + argument;
  return text;
}

/// Whether the run's YAML is the one that its folder keeps of a run before.
bool is_saved_run(const std::string& run_file, const std::string& run_dir) {
  std::error_code error;
  return !run_dir.empty() && std::filesystem::equivalent(run_file, run_dir + "/run.yaml", error);
}

/// How many ranks somebody wishes for; 0: nobody says. The number in a folder's own run.yaml is that
/// of the ranks that ran: we start as many again, but a launcher may start others.
int wished_ranks(const TrainOptions& options, const RunWithModel& config,
                 const comm::Launch& launch) {
  const Where* where = config.run_provenance.find("ranks");
  const bool kept = !(where && where->from_set()) && launch.launcher != "single" &&
                    is_saved_run(options.run_file, config.run.run_dir);
  return flag_or_run("--ranks", options.ranks, kept ? 0 : config.run.ranks, where);
}

/// The run's folder is named in YAML and JSON, which are UTF-8.
void check_run_dir(const TrainOptions& options, const std::string& run_dir) {
  const std::string name = std::filesystem::path(options.run_file).stem().string();
  if (is_utf8(run_dir.empty() ? name : run_dir)) return;
  throw user_error("the run's folder would be called ", run_dir.empty() ? "runs/" + name : run_dir,
                   ", which is not UTF-8, as its run.yaml and checkpoints need; give another "
                   "--run-dir");
}

/// Timeline and report, from all ranks. A resumed run that had nothing left to do keeps those it has.
void leave_files(const train::Job& job, const train::Trainer& trainer,
                 const train::RunResult& result, const TrainOptions& options,
                 const comm::Mesh& mesh, const train::Exchange& exchange,
                 train::Unwritten& unwritten) {
  if (options.resume && result.steps == 0) return;
  train::write_timelines(job, trainer.recorder(), mesh.rank(), mesh.size(), exchange, unwritten);
  const auto phases = train::gather_phases(trainer.recorder(), exchange);
  if (mesh.rank() != 0) return;
  std::vector<double> tokens = result.rank_tokens;
  for (double& t : tokens) t /= static_cast<double>(std::max<int64_t>(1, result.steps));
  train::keep_going(unwritten, [&] {
    train::write_run_report(
        {job, result, joined_arguments(options.arguments), phases, tokens, result.steps});
  });
}

/// After the results: what is not in the run's folder, and what is.
void tell_unwritten(const train::Unwritten& unwritten, const train::Job& job,
                    const train::RunResult& result) {
  std::string all;
  for (const std::string& sentence : unwritten) all += (all.empty() ? "" : "; ") + sentence;
  if (result.cursor.step > 0)
    all += "; the checkpoint of step " + std::to_string(result.cursor.step) + " in " + job.run_dir +
           " is good";
  if (std::ferror(stdout) == 0) all += "; the results have been printed";
  std::fprintf(stderr, "tautline: %s\n", all.c_str());
}

/// Returns the exit status.
int run_rank(const TrainOptions& options, const RunWithModel& config, comm::Mesh& mesh,
             at::Device device) {
  const Logger log({.rank = mesh.rank(), .world = mesh.size()});
  const comm::Communicator side = mesh.host_group("side");
  train::JobRequest request{config.run, config.model,
                            std::filesystem::path(options.run_file).stem().string(),
                            options.resume};
  const train::Job job =
      train::make_job(request, mesh.launch(), device, train::exchange_over(side));
  if (mesh.size() > 1 && mesh.launch().launcher != "local") log.info(comm::describe(mesh.launch()));
  std::FILE* people = options.json ? stderr : stdout;  // scripts read the one object alone
  const auto print_plan = [&] {
    if (mesh.rank() != 0) return;
    std::fprintf(people, "%s\n", printed(job.plan).c_str());
    std::fflush(people);
  };
  if (!options.resume) print_plan();
  train::Trainer trainer(job, options.resume, mesh, side, device, log);
  // Only now: what a resume refuses has no plan, and leaves the folder's own run as it was.
  if (options.resume) print_plan();
  if (mesh.rank() == 0) train::write_configs(job);
  const train::RunResult result = trainer.run();
  train::Unwritten unwritten = result.unwritten;
  leave_files(job, trainer, result, options, mesh, train::exchange_over(side), unwritten);
  if (mesh.rank() != 0) return kExitDone;
  std::fprintf(people, "%s", train::summary_table(job, result).c_str());
  if (options.json) std::printf("%s\n", train::summary_json(job, result).c_str());
  std::fflush(stdout);
  if (unwritten.empty()) return kExitDone;
  tell_unwritten(unwritten, job, result);
  return kExitUser;
}

/// Memory, threads and paths that the machine denies are the user's errors.
template <class Run>
int with_machine_errors(Run run) {
  try {
    return run();
  } catch (const UserError&) {
    throw;
  } catch (const RankFailure&) {
    throw;
  } catch (const std::exception& error) {
    if (const auto sentence = train::machine_sentence(error)) throw UserError(*sentence);
    throw;
  }
}

/// An error of a rank that has peers: they are told why, and nothing waits for them any more. Our own
/// launcher prints the sentence of the rank that failed; said once is enough.
[[noreturn]] void leave(comm::Mesh& mesh, int status, const std::string& reason) {
  mesh.fail(reason);
  const bool launcher_tells = mesh.launch().launcher == "local" && mesh.watch()->told();
  if (!launcher_tells) std::fprintf(stderr, "tautline: %s\n", reason.c_str());
  std::fflush(nullptr);
  _exit(status);
}

}  // namespace

int train(TrainOptions options) {
  if (options.run_file.empty()) options.run_file = saved_run(options.run_dir);
  RunWithModel config = read_run(options.run_file, options.sets, !options.resume);
  if (config.run.data.log.empty())
    throw user_error("data.log is missing in ", options.run_file, "; leave ", options.run_file,
                     " out to resume with what the folder of --run-dir keeps, or give --set "
                     "data.log=DIR");
  config.run.run_dir = flag_or_run("--run-dir", options.run_dir, config.run.run_dir,
                                   config.run_provenance.find("run_dir"));
  check_run_dir(options, config.run.run_dir);
  // The folder's run.yaml is read from anywhere.
  std::string& checkpoints = config.run.checkpoint.folder;
  if (!checkpoints.empty() && !data::is_uri(checkpoints))
    checkpoints = std::filesystem::absolute(checkpoints).lexically_normal().string();
  train::check_threads(config.run.threads);
  const comm::Launch launch = detect(options);
  const int ranks = wished_ranks(options, config, launch);
  if (launch.launcher == "single" && ranks > 1) {
    data::read_log_statistics(config.run.data.log);  // its errors are told once, not by each rank
    return comm::run_local_ranks({.ranks = ranks, .arguments = options.arguments});
  }
  if (ranks > 0 && ranks != launch.world) {
    throw user_error("ranks: ", ranks, " were asked for, but the launcher (", launch.launcher,
                     ") started ", launch.world, "; --set ranks=0 takes what it starts");
  }
  // What the folder keeps: as many ranks as we started, or whatever a launcher starts.
  const bool ours = launch.launcher == "single" || launch.launcher == "local";
  config.run.ranks = ours ? launch.world : ranks;

  comm::prepare_process(launch);
  comm::install_stop_signals(launch.launcher == "single" ? comm::ThirdSignal::kKills
                                                         : comm::ThirdSignal::kIsNoted);
  set_rank_for_errors(launch.rank);
  const at::Device device = device_of(config.run, launch);
  train::set_threads(config.run.threads, launch);
  const auto mesh = comm::Mesh::open(launch, {.device = device});
  const auto run = [&] {
    return with_machine_errors([&] { return run_rank(options, config, *mesh, device); });
  };
  if (launch.world == 1) return run();
  try {
    const int status = run();
    mesh->finish();
    return status;
  } catch (const UserError& error) {
    leave(*mesh, kExitUser, error.what());
  } catch (const RankFailure& error) {
    leave(*mesh, kExitRankFailed, error.what());
  } catch (const std::exception& error) {
    mesh->fail(error.what());
    throw;
  }
}

}  // namespace tautline::cli
