// From a whole c10d::ProcessGroup; a file of its own, because its header costs seconds to compile.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tautline/comm/communicator.h"

namespace tautline::comm {

Communicator communicator_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                             at::Device device) {
  return Communicator(group->getBackend(device.type()), device, group->getGroupName());
}

}  // namespace tautline::comm
