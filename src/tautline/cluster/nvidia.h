// NVIDIA GPUs of this machine, without a link to any NVIDIA library.
#pragma once

#include "tautline/cluster/cluster.h"

namespace tautline {

struct NvidiaDevices {
  int count = 0;
  Device device;  // the first one; a node's devices are taken to be equal
};

/// count 0 where no driver answers.
NvidiaDevices nvidia_devices();

}  // namespace tautline
