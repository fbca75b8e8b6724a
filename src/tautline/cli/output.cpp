#include "tautline/cli/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <signal.h>
#include <unistd.h>

#include "tautline/base/error.h"
#include "tautline/comm/stop.h"

namespace tautline::cli {

void finish_output() {
  const bool flushed = std::fflush(stdout) == 0;
  if ((flushed && std::ferror(stdout) == 0) || comm::stop_signal() == SIGHUP) return;
  // An earlier write may have failed: its reason is asked for once more.
  const bool again = ::write(STDOUT_FILENO, "\n", 1) == 1;
  throw user_error(
      "standard output cannot be written: ", again ? "parts of it were lost" : std::strerror(errno),
      "; all else is done, only what was printed is incomplete");
}

}  // namespace tautline::cli
