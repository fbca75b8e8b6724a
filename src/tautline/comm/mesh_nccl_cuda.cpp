#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "tautline/comm/backends.h"

namespace tautline::comm {

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                            const BackendOptions& options, c10::Device device) {
  auto nccl = c10d::ProcessGroupNCCL::Options::create();
  nccl->timeout = options.timeout;
  nccl->group_name = options.group;
  auto group =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(store, options.rank, options.world, nccl);
  group->setGroupDesc(options.group);
  group->setBoundDeviceId(device);
  group->eagerConnectSingleDevice(device);
  return group;
}

}  // namespace tautline::comm
