// What a process of a job sets for itself, once.
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <c10/util/Logging.h>

#include "tautline/base/error.h"
#include "tautline/comm/launch.h"

namespace tautline::comm {

void keep_flight_recorder_off() {
  // c10d's flight recorder holds a map of the process that Gloo's groups write without a lock
  // (torch 2.11, FlightRecorder::recordWithResetEnabled): two threads with a group each, a step and
  // a checkpoint say, crash in it sooner or later. It reads its variable once, at the first
  // collective. Whoever sets it wants it.
  for (const char* name : {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"})
    if (process_variable(name)) return;
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
}

void prepare_process(const Launch& launch) {
  set_rank_for_errors(launch.world > 1 ? launch.rank : -1);
  // libtorch's own handler would abort the process before the watch can name the dead rank
  // (watch.h).
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 1);
  keep_flight_recorder_off();
  // c10d warns of each lost connection with a page of addresses; the watch says it in a sentence.
  if (!process_variable("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = 2;
  if (launch.launcher != "local") return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // In a process group of its own it writes to a terminal from the background.
  ::signal(SIGTTOU, SIG_IGN);
  const auto launcher = process_variable("TAUTLINE_LAUNCHER_PID");
  if (launcher && *launcher != std::to_string(::getppid())) ::raise(SIGKILL);  // it died before
}

}  // namespace tautline::comm
