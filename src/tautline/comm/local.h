// `--ranks N`: N copies of this very program on this machine, each with the same arguments.
//
// The launcher stays the parent: it hosts the store (so the death of rank 0 leaves it standing),
// prefixes the output of ranks > 0, forwards SIGTERM, SIGINT and SIGHUP, and waits. It starts ranks through
// posix_spawn, never fork: libtorch has threads. A rank that dies ends the job: the launcher names
// it and the reason, lets the others end by themselves, then sends SIGTERM, then SIGKILL.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace tautline::comm {

struct LocalOptions {
  int ranks = 1;
  std::string program = "/proc/self/exe";
  std::vector<std::string> arguments;  // as main got them, argv[0] first
  enum class Output { kPrefixed, kRankZero, kAll };
  Output output =
      Output::kPrefixed;  // of ranks > 0: prefixed on standard error, dropped, or as it is
  std::chrono::milliseconds own_end{
      8000};                              // for the others to end by themselves once a rank is dead
  std::chrono::milliseconds grace{3000};  // between SIGTERM and SIGKILL
};

/// Starts the ranks and waits for them. Returns the exit status of the job: 0 when every rank ended
/// with 0, 2 when a rank met a user's error, 134 when one broke an invariant, else 3. Must be
/// called by a process with a single rank (launcher "single"), from its main thread.
int run_local_ranks(const LocalOptions& options);

}  // namespace tautline::comm
