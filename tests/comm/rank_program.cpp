// What the tests start through --ranks, torchrun, mpirun and srun: prints its Launch, adds up the
// ranks, and then does what it was told to.
//
//   comm_rank_program [--ranks N] [--cuda] MODE [RANK or SECONDS]
//     sum              print "launch ..." and "sum ..." and end
//     kill RANK        after the sum, RANK ends by SIGKILL while the others wait in a collective
//     throw RANK       RANK throws a UserError
//     abort RANK       RANK breaks an invariant
//     freeze RANK      RANK stops itself (SIGSTOP)
//     early RANK       RANK returns from main with 0 while the others go on
//     steps SECONDS    steps of 50 ms until a stop signal is agreed on, at most SECONDS
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include <ATen/ops/full.h>

#include "tautline/base/error.h"
#include "tautline/comm/local.h"
#include "tautline/comm/mesh.h"
#include "tautline/comm/stop.h"

namespace tautline::comm {
namespace {

void print(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

double sum_of(const Communicator& communicator, double value) {
  at::Tensor sum =
      at::full({1}, value, at::TensorOptions(at::kDouble).device(communicator.device()));
  Communicator(communicator).all_reduce(sum, Communicator::Reduction::kSum, "sum").wait();
  return sum.item<double>();
}

void misbehave(const std::string& mode, const Mesh& mesh) {
  if (mode == "kill") ::raise(SIGKILL);
  if (mode == "throw") throw user_error("column 'x' is missing from a.csv");
  if (mode == "abort") TAUTLINE_INVARIANT(mesh.rank() < 0, "rank is " << mesh.rank());
  if (mode == "freeze") ::raise(SIGSTOP);
  if (mode == "early") std::_Exit(0);
}

void steps(Mesh& mesh, double seconds) {
  StopAgreement agreement(mesh.host_group("stop"));
  print("stepping");
  for (int step = 0; step * 0.05 < seconds; ++step) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const Stop stop = agreement.next();
    if (stop == Stop::kYes)
      return print("rank " + std::to_string(mesh.rank()) + " stops at step " +
                   std::to_string(step));
    if (stop == Stop::kPeerGone) throw RankFailure("a peer is gone: no checkpoint");
  }
  agreement.finish();
}

void run(Mesh& mesh, const std::string& mode, double argument) {
  const double sum = sum_of(mesh.world(), mesh.rank() + 1);
  print("rank " + std::to_string(mesh.rank()) + " sum " + std::to_string(static_cast<int>(sum)) +
        " nodes " + std::to_string(mesh.nodes()));
  if (mode == "steps") return steps(mesh, argument);
  if (mode == "sum") return;
  if (mesh.rank() == static_cast<int>(argument)) misbehave(mode, mesh);
  for (int i = 0; i < 2000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    sum_of(mesh.world(), 1);
    if (mesh.watch()) mesh.watch()->check();
  }
}

int rank_main(const std::string& mode, double argument, bool cuda) {
  const Launch launch = detect_launch();
  prepare_process(launch);
  install_stop_signals();
  print("launch " + describe(launch));
  std::unique_ptr<Mesh> mesh;
  try {
    MeshOptions mesh_options;
    if (cuda) mesh_options.device = at::Device(at::kCUDA, static_cast<int8_t>(launch.local_rank));
    if (mode == "freeze") mesh_options.watch.silent_seconds = 4;  // a shorter test
    mesh = Mesh::open(launch, mesh_options);
    run(*mesh, mode, argument);
    mesh->finish();
    return kExitDone;
  } catch (const UserError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    if (mesh) mesh->fail(error.what());
    std::_Exit(kExitUser);
  } catch (const RankFailure& error) {
    std::fprintf(stderr, "rank %d: %s\n", launch.rank, error.what());
    if (mesh) mesh->fail(error.what());
    std::_Exit(kExitRankFailed);
  }
}

}  // namespace
}  // namespace tautline::comm

int main(int count, char** arguments) {
  using namespace tautline::comm;
  int at = 1, ranks = 0;
  if (count > 2 && std::strcmp(arguments[1], "--ranks") == 0) {
    ranks = std::atoi(arguments[2]);
    at = 3;
  }
  const bool cuda = at < count && std::strcmp(arguments[at], "--cuda") == 0;
  at += cuda;
  const std::string mode = at < count ? arguments[at] : "sum";
  const double argument = at + 1 < count ? std::atof(arguments[at + 1]) : 0;
  if (ranks > 0 && detect_launch().launcher == "single") {
    LocalOptions options{.ranks = ranks, .arguments = {arguments, arguments + count}};
    if (mode == "freeze") options.own_end = std::chrono::seconds(2);
    return run_local_ranks(options);
  }
  return rank_main(mode, argument, cuda);
}
