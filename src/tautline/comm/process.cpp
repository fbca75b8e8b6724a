// What a process of a job sets for itself, once.
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <c10/util/Logging.h>

#include "tautline/base/error.h"
#include "tautline/comm/launch.h"

namespace tautline::comm {

void prepare_process(const Launch& launch) {
  set_rank_for_errors(launch.world > 1 ? launch.rank : -1);
  // libtorch's own handler would abort the process before the watch can name the dead rank
  // (watch.h).
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 1);
  // c10d warns of each lost connection with a page of addresses; the watch says it in a sentence.
  if (!process_variable("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = 2;
  if (launch.launcher != "local") return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto launcher = process_variable("TAUTLINE_LAUNCHER_PID");
  if (launcher && *launcher != std::to_string(::getppid())) ::raise(SIGKILL);  // it died before
}

}  // namespace tautline::comm
