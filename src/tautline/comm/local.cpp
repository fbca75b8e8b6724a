#include "tautline/comm/local.h"

#include <algorithm>
#include <cstdio>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tautline/base/error.h"
#include "tautline/comm/communicator.h"
#include "tautline/comm/launch.h"
#include "tautline/comm/stop.h"

namespace tautline::comm {
namespace {

constexpr int kExitBroken = 134;  // a broken invariant aborts
constexpr double kPollSeconds = 0.05;
// The third SIGTERM or Ctrl-C kills; who insists so may have an output that nobody reads any more.
constexpr int kInsistences = 2;

volatile sig_atomic_t received_signal = 0, received_count = 0, insisted_count = 0, suspended = 0;
void note_signal(int signal) {
  received_signal = signal;
  received_count = received_count + 1;
  // A terminal that goes away sends several SIGHUPs: they are one wish.
  if (signal != SIGHUP) insisted_count = insisted_count + 1;
}

void note_suspension(int) { suspended = 1; }

// Text that a rank wrote, cut into lines with the rank in front.
class Lines {
 public:
  void add(int rank, const char* data, size_t size) {
    rest_.append(data, size);
    size_t begin = 0;
    for (size_t end; (end = rest_.find('\n', begin)) != std::string::npos; begin = end + 1)
      print(rank, rest_.substr(begin, end - begin));
    rest_.erase(0, begin);
  }
  void close(int rank) {
    if (!rest_.empty()) print(rank, rest_);
    rest_.clear();
  }

 private:
  static void print(int rank, const std::string& line) {
    if (insisted_count > kInsistences) return;
    std::fprintf(stderr, "[rank %d] %s\n", rank, line.c_str());
  }
  std::string rest_;
};

struct Rank {
  pid_t pid = -1;
  int output = -1;  // read end of its standard output and error, -1: none or closed
  Lines lines;
  std::optional<int> status;  // of waitpid
};

class Job {
 public:
  explicit Job(const LocalOptions& options) : options_(options), ranks_(options.ranks) {
    c10d::TCPStoreOptions store;
    store.port = 0;  // any free one
    store.isServer = true;
    store.waitWorkers = false;
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", store);
  }

  void start();
  int wait();

 private:
  void spawn(int rank);
  void read_output(int timeout_ms);
  void drain(Rank& rank, int number);
  void collect();
  void on_death(int number);
  void steer();
  void suspend();
  void signal_all(int signal);
  bool running() const;
  std::string stored(const std::string& key);
  void tell(const std::string& sentence);
  void tell_user_error(const std::string& reason);
  int exit_status() const;

  LocalOptions options_;
  std::vector<Rank> ranks_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
  double died_at_ = 0;  // of the first rank that ended with an error
  int ended_ = 0;       // SIGTERM, SIGKILL sent by us
  int forwarded_ = 0;   // signals that went on to the ranks
  bool told_ = false, told_user_error_ = false;
};

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

void Job::start() {
  for (int rank = 0; rank < options_.ranks; ++rank) spawn(rank);
}

// posix_spawn and not fork: libtorch's threads may hold locks that a forked child would wait for.
void Job::spawn(int number) {
  Rank& rank = ranks_[static_cast<size_t>(number)];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  int ends[2] = {-1, -1};
  if (number > 0 && options_.output == LocalOptions::Output::kPrefixed) {
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw user_error("no pipe for rank ", number, ": ", ::strerror(errno));
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
  } else if (number > 0 && options_.output == LocalOptions::Output::kRankZero) {
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  }
  // A process group of its own: Ctrl-C reaches a rank once, through the launcher.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults, waiting;
  sigemptyset(&defaults);
  sigemptyset(&waiting);
  for (const int signal : kStopSignals) {
    if (!is_ignored(signal)) sigaddset(&defaults, signal);
    sigaddset(&waiting, signal);
  }
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  // They wait until the rank has its handlers (stop.h): while it loads they would kill it.
  posix_spawnattr_setsigmask(&attributes, &waiting);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);

  std::vector<std::string> variables = environment_without_launchers();
  for (auto& variable : local_rank_variables(number, options_.ranks, store_->getPort(), ::getpid()))
    variables.push_back(std::move(variable));
  std::vector<char*> arguments, environment;
  for (auto& argument : options_.arguments) arguments.push_back(argument.data());
  for (auto& variable : variables) environment.push_back(variable.data());
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  const int error = ::posix_spawn(&rank.pid, options_.program.c_str(), &actions, &attributes,
                                  arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (ends[1] >= 0) ::close(ends[1]);
  rank.output = ends[0];
  if (error != 0) {
    rank.pid = -1;
    signal_all(SIGKILL);
    throw user_error("rank ", number, " cannot be started: ", ::strerror(error));
  }
}

bool Job::running() const {
  for (const Rank& rank : ranks_)
    if (!rank.status) return true;
  return false;
}

int Job::wait() {
  while (running()) {
    read_output(static_cast<int>(kPollSeconds * 1000));
    collect();
    suspend();
    steer();
  }
  for (size_t number = 0; number < ranks_.size(); ++number) {
    if (ranks_[number].output < 0) continue;
    ::fcntl(ranks_[number].output, F_SETFL, O_NONBLOCK);  // a grandchild may hold the other end
    drain(ranks_[number], static_cast<int>(number));
    if (ranks_[number].output >= 0) ::close(ranks_[number].output);
    ranks_[number].lines.close(static_cast<int>(number));
  }
  const int status = exit_status();
  if (status != kExitDone && !told_) {  // the ranks' own sentence, where no death says it
    const std::string failed = stored("failed");
    if (!failed.empty()) tell(failed);
  }
  return status;
}

void Job::tell(const std::string& sentence) {
  told_ = true;
  if (insisted_count > kInsistences) return;
  std::fprintf(stderr, "tautline: %s\n", sentence.c_str());
}

// One sentence for the job, though every rank may end by it. Without a reason the rank printed it.
void Job::tell_user_error(const std::string& reason) {
  if (!reason.empty() && !told_user_error_) tell(reason);
  told_user_error_ = told_user_error_ || !reason.empty();
  told_ = true;
}

void Job::read_output(int timeout_ms) {
  std::vector<pollfd> polled;
  std::vector<int> numbers;
  for (size_t number = 0; number < ranks_.size(); ++number) {
    if (ranks_[number].output < 0) continue;
    polled.push_back({ranks_[number].output, POLLIN, 0});
    numbers.push_back(static_cast<int>(number));
  }
  ::poll(polled.data(), polled.size(), timeout_ms);
  for (size_t at = 0; at < polled.size(); ++at)
    if (polled[at].revents != 0) drain(ranks_[static_cast<size_t>(numbers[at])], numbers[at]);
}

void Job::drain(Rank& rank, int number) {
  char buffer[4096];
  const ssize_t size = ::read(rank.output, buffer, sizeof buffer);
  if (size > 0) {
    rank.lines.add(number, buffer, static_cast<size_t>(size));
  } else if (size == 0) {
    ::close(rank.output);
    rank.output = -1;
  }
}

void Job::collect() {
  for (size_t number = 0; number < ranks_.size(); ++number) {
    int status = 0;
    if (ranks_[number].status || ::waitpid(ranks_[number].pid, &status, WNOHANG) <= 0) continue;
    ranks_[number].status = status;
    if (status != 0) on_death(static_cast<int>(number));
  }
}

// What the ranks left in the store (watch.h): reason/R, a rank's own sentence, and failed, the job's.
std::string Job::stored(const std::string& name) {
  const std::string key = "/tautline/watch/" + name;
  try {
    if (store_->check({key})) return store_->get_to_str(key);
  } catch (const std::exception&) {  // our own store: it answers
  }
  return "";
}

void Job::on_death(int number) {
  const Rank& rank = ranks_[static_cast<size_t>(number)];
  const int status = *rank.status;
  if (died_at_ == 0) died_at_ = steady_seconds();
  // What followed from a death, or from our own signals, is no news.
  const bool consequence = WIFEXITED(status) && WEXITSTATUS(status) == kExitRankFailed;
  const std::string reason = stored("reason/" + std::to_string(number));
  if (ended_ != 0 || (consequence && reason.empty())) return;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kExitUser) {
    tell_user_error(reason);
    return;
  }
  std::string how = WIFSIGNALED(status)
                        ? "was killed by " + signal_name(WTERMSIG(status))
                        : "ended with exit status " + std::to_string(WEXITSTATUS(status));
  tell("rank " + std::to_string(number) + " (pid " + std::to_string(rank.pid) + ") " + how +
       (reason.empty() ? "" : ": " + reason));
}

// After a death the others get time to end by themselves, then SIGTERM, then SIGKILL.
// Ctrl-Z reaches the launcher alone: the ranks stop before it and go on after it.
void Job::suspend() {
  if (!suspended) return;
  suspended = 0;
  signal_all(SIGSTOP);
  ::raise(SIGSTOP);
  signal_all(SIGCONT);
}

void Job::steer() {
  if (forwarded_ < received_count) {
    forwarded_ = received_count;
    signal_all(insisted_count > kInsistences ? SIGKILL : static_cast<int>(received_signal));
  }
  if (died_at_ == 0) return;
  const double since = (steady_seconds() - died_at_) * 1e3;
  const double own_end = static_cast<double>(options_.own_end.count());
  if (ended_ == 0 && since > own_end) {
    ended_ = SIGTERM;
    signal_all(SIGTERM);
  } else if (ended_ == SIGTERM && since > own_end + static_cast<double>(options_.grace.count())) {
    ended_ = SIGKILL;
    signal_all(SIGKILL);
  }
}

void Job::signal_all(int signal) {
  for (const Rank& rank : ranks_)
    if (rank.pid > 0 && !rank.status) ::kill(rank.pid, signal);
}

int Job::exit_status() const {
  int result = kExitDone;
  for (const Rank& rank : ranks_) {
    const int status = rank.status.value_or(0);
    if (status == 0) continue;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) return kExitBroken;
    if (WIFEXITED(status) && WEXITSTATUS(status) == kExitBroken) return kExitBroken;
    const bool user = WIFEXITED(status) && WEXITSTATUS(status) == kExitUser;
    result = user || result == kExitUser ? kExitUser : kExitRankFailed;
  }
  return result;
}

// The launcher's handlers while a job runs, then what was before.
class Signals {
 public:
  Signals() {
    received_signal = received_count = insisted_count = suspended = 0;
    struct sigaction action = {};
    action.sa_handler = note_signal;
    for (size_t i = 0; i < kStopSignals.size(); ++i) {
      ::sigaction(kStopSignals[i], nullptr, &before_[i]);
      if (!is_ignored(kStopSignals[i])) ::sigaction(kStopSignals[i], &action, nullptr);
    }
    ::sigaction(SIGTSTP, nullptr, &before_suspension_);
    action.sa_handler = note_suspension;
    if (before_suspension_.sa_handler != SIG_IGN) ::sigaction(SIGTSTP, &action, nullptr);
  }
  ~Signals() {
    for (size_t i = 0; i < kStopSignals.size(); ++i)
      ::sigaction(kStopSignals[i], &before_[i], nullptr);
    ::sigaction(SIGTSTP, &before_suspension_, nullptr);
  }

 private:
  std::array<struct sigaction, kStopSignals.size()> before_ = {};
  struct sigaction before_suspension_ = {};
};

}  // namespace

int run_local_ranks(const LocalOptions& options) {
  if (options.ranks < 1) throw user_error("--ranks ", options.ranks, "; one rank or more is right");
  // More of them would take all memory before the first one fails.
  const int processors = static_cast<int>(std::thread::hardware_concurrency());
  const int most = std::max(64, 8 * processors);
  if (options.ranks > most)
    throw user_error("--ranks ", options.ranks, ": this machine has ", processors,
                     " processors, at most ", most,
                     " local ranks are started; torchrun or srun starts ranks on several machines");
  const Signals signals;
  Job job(options);
  job.start();
  return job.wait();
}

}  // namespace tautline::comm
