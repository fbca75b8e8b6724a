// Who a rank is, and whether its process still runs. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tautline::comm {

/// A rank's process and machine.
struct Peer {
  int rank = 0;
  int64_t pid = 0;
  std::string host;
  std::string machine;  // boot id and pid namespace: equal where a pid means the same process
  int64_t start_ticks =
      0;  // of the process since boot: a pid alone may be given to another process
  bool operator==(const Peer&) const = default;
};

Peer this_process(int rank);
/// "rank 2 (pid 4711 on node03)"
std::string describe(const Peer& peer);

/// One line of text and back, for the store. Throws std::runtime_error on other text.
std::string to_text(const Peer& peer);
Peer peer_from_text(const std::string& text);

/// True: its process is gone (a zombie counts). False: it runs. Nothing: it is on another machine.
std::optional<bool> process_gone(const Peer& peer, const std::string& our_machine);

/// Stopped by a signal (Ctrl-Z, SIGSTOP): it does not answer, and is not gone.
bool process_stopped(int64_t pid);

}  // namespace tautline::comm
