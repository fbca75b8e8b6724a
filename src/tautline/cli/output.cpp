#include "tautline/cli/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <signal.h>

#include "tautline/base/error.h"
#include "tautline/comm/stop.h"

namespace tautline::cli {

void finish_output() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  const int reason = errno;
  if ((flushed && std::ferror(stdout) == 0) || comm::stop_signal() == SIGHUP) return;
  throw user_error("standard output cannot be written",
                   reason != 0 ? std::string(": ") + std::strerror(reason) : "",
                   "; all else is done, only what was printed is incomplete");
}

}  // namespace tautline::cli
