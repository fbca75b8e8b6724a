#include "tautline/comm/peer.h"

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <unistd.h>

namespace tautline::comm {
namespace {

struct ProcessState {
  char state = 0;  // R, S, D, T, Z, X
  int64_t start_ticks = 0;
};

// proc(5): "pid (name) state ppid ...", start time is field 22; the name may hold spaces and
// brackets.
std::optional<ProcessState> read_process(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  ProcessState process;
  fields >> process.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> process.start_ticks;
  return process;
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string machine_id() {
  char name[128] = {};
  const ssize_t length = ::readlink("/proc/self/ns/pid", name, sizeof name - 1);
  return first_line("/proc/sys/kernel/random/boot_id") + "/" + (length > 0 ? name : "?");
}

}  // namespace

Peer this_process(int rank) {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  const int64_t pid = ::getpid();
  const auto process = read_process(pid);
  return {rank, pid, host, machine_id(), process ? process->start_ticks : 0};
}

std::string describe(const Peer& peer) {
  return "rank " + std::to_string(peer.rank) + " (pid " + std::to_string(peer.pid) + " on " +
         peer.host + ")";
}

std::string to_text(const Peer& peer) {
  std::ostringstream out;
  out << peer.rank << ' ' << peer.pid << ' ' << peer.start_ticks << ' ' << peer.machine << ' '
      << peer.host;
  return out.str();
}

Peer peer_from_text(const std::string& text) {
  std::istringstream in(text);
  Peer peer;
  if (!(in >> peer.rank >> peer.pid >> peer.start_ticks >> peer.machine >> peer.host))
    throw std::runtime_error("a rank introduced itself as '" + text + "'");
  return peer;
}

std::optional<bool> process_gone(const Peer& peer, const std::string& our_machine) {
  if (peer.machine != our_machine) return std::nullopt;
  const auto process = read_process(peer.pid);
  return !process || process->state == 'Z' || process->state == 'X' ||
         process->start_ticks != peer.start_ticks;
}

bool process_stopped(int64_t pid) {
  const auto process = read_process(pid);
  return process && (process->state == 'T' || process->state == 't');
}

}  // namespace tautline::comm
