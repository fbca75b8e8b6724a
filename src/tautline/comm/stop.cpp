#include "tautline/comm/stop.h"

#include <atomic>
#include <signal.h>

#include <ATen/ops/full.h>

#include "tautline/base/error.h"

namespace tautline::comm {
namespace {

// A signal handler can reach nothing else than this.
volatile sig_atomic_t noted_signal = 0, insisted_count = 0;

void note(int signal) { noted_signal = signal; }

void note_or_die(int signal) {
  noted_signal = signal;
  // A terminal that goes away sends several SIGHUPs: they are one wish.
  if (signal != SIGHUP) insisted_count = insisted_count + 1;
  if (insisted_count < 3) return;
  ::signal(signal, SIG_DFL);
  ::raise(signal);  // delivered when this handler returns
}

}  // namespace

bool is_ignored(int signal) {
  struct sigaction now = {};
  return signal == SIGHUP && ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

void install_stop_signals(ThirdSignal third) {
  struct sigaction action = {};
  action.sa_handler = third == ThirdSignal::kKills ? note_or_die : note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigset_t all;
  sigemptyset(&all);
  for (const int signal : kStopSignals) {
    if (!is_ignored(signal)) ::sigaction(signal, &action, nullptr);
    sigaddset(&all, signal);
  }
  ::pthread_sigmask(SIG_UNBLOCK, &all, nullptr);
}

int stop_signal() { return noted_signal; }
void request_stop(int signal) { noted_signal = signal; }
void clear_stop() { noted_signal = 0; }

StopAgreement::StopAgreement(Communicator control, double patience_seconds)
    : control_(std::move(control)), patience_(patience_seconds) {}

Stop StopAgreement::now() {
  const Stop answer = next();
  return answer == Stop::kNo ? finish() : answer;
}

Stop StopAgreement::next() {
  if (control_.size() == 1) return stop_signal() ? Stop::kYes : Stop::kNo;
  const Stop answer = read();
  if (answer != Stop::kNo) return answer;
  flag_ = at::full({1}, stop_signal() ? 1 : 0, at::kInt);
  work_ = control_.all_reduce(flag_, Communicator::Reduction::kMax, "stop");
  return Stop::kNo;
}

Stop StopAgreement::finish() { return control_.size() == 1 ? Stop::kNo : read(); }

Stop StopAgreement::read() {
  if (!work_) return Stop::kNo;
  Work work = *std::exchange(work_, std::nullopt);
  try {
    if (!stop_signal()) {
      work.wait();
    } else if (!work.wait_for(patience_)) {
      return Stop::kPeerGone;
    }
  } catch (const RankFailure&) {
    if (!stop_signal()) throw;
    return Stop::kPeerGone;
  }
  return flag_.item<int>() ? Stop::kYes : Stop::kNo;
}

}  // namespace tautline::comm
