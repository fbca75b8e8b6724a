// SIGTERM, SIGINT and SIGHUP: the ranks agree at a step's end to stop at the same step.
//
// Each step ends with `next()`: it starts a maximum over one int (Gloo, asynchronous) and reads the
// one that the step before started. So every rank learns of a stop at the same step, at most one
// step late, and the exchange costs no waiting. A rank that was told to stop waits `patience` for
// its peers; where one is gone the answer is kPeerGone: end without a checkpoint.
#pragma once

#include <array>
#include <optional>
#include <signal.h>

#include "tautline/comm/communicator.h"

namespace tautline::comm {

enum class Stop { kNo, kYes, kPeerGone };

/// SIGHUP: the terminal was closed or the connection to it was lost.
inline constexpr std::array kStopSignals = {SIGTERM, SIGINT, SIGHUP};

/// SIGHUP under nohup: it stays ignored. The other signals always stop.
bool is_ignored(int signal);

/// Handlers that only note the signal. Process-wide by their nature; install once, on the main
/// thread. A rank that local.h started gets here what came while it was loading. Where no launcher
/// does it, the third SIGTERM or SIGINT kills: a process that waits for its output's reader would
/// never see them.
enum class ThirdSignal { kIsNoted, kKills };
void install_stop_signals(ThirdSignal third = ThirdSignal::kIsNoted);
/// The signal that was noted, or 0.
int stop_signal();
/// For tests and for a program that wants to stop for another reason.
void request_stop(int signal);
void clear_stop();

class StopAgreement {
 public:
  /// `control`: a CPU communicator that nothing else uses.
  explicit StopAgreement(Communicator control, double patience_seconds = 10);
  /// Before the first step, by all ranks: agrees and waits for the answer.
  Stop now();
  /// At the end of each step, by all ranks.
  Stop next();
  /// At the end of training: takes back what the last step started.
  Stop finish();

 private:
  Stop read();
  Communicator control_;
  double patience_;
  std::optional<Work> work_;
  at::Tensor flag_;
};

}  // namespace tautline::comm
