// Makes c10d's process groups; one .cpp each, because of their headers.
#pragma once

#include <chrono>
#include <string>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace tautline::comm {

struct BackendOptions {
  int rank = 0, world = 1;
  std::string group;
  std::chrono::milliseconds timeout{0};
};

/// Gloo over TCP. The address that it binds to is that of `interface`, or else the one from which
/// this machine reaches `master_addr` (so that a host name in /etc/hosts cannot mislead it).
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                            const BackendOptions& options,
                                            const std::string& master_addr,
                                            const std::string& interface);

#ifdef TAUTLINE_CUDA
/// NCCL on `device`; connects at once.
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                            const BackendOptions& options, c10::Device device);
#endif

}  // namespace tautline::comm
