// The ranks of a job, joined: rendezvous through c10d's TCPStore, process groups, and the watch.
//
//   Launch launch = detect_launch();
//   prepare_process(launch);
//   auto mesh = Mesh::open(launch, {.device = at::kCPU});
//   mesh->world().all_reduce(t, Communicator::Reduction::kSum, "loss").wait();
//   mesh->finish();
//
// Collectives that may run at the same time belong to groups of their own (`group("ids")`): each
// has its own order and, with NCCL, its own stream.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tautline/comm/communicator.h"
#include "tautline/comm/launch.h"
#include "tautline/comm/watch.h"

namespace tautline::comm {

struct MeshOptions {
  at::Device device = at::kCPU;  // of this rank; CUDA: NCCL
  WatchOptions watch;
  std::chrono::seconds rendezvous{120};  // for all ranks to arrive
  std::chrono::minutes collective{60};   // a bound of last resort: the watch speaks much earlier
};

class Mesh {
 public:
  /// Throws UserError where the store's address cannot be had or reached.
  static std::unique_ptr<Mesh> open(const Launch& launch, const MeshOptions& options);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  const Launch& launch() const;  // with `node` filled in
  int rank() const;
  int size() const;
  int nodes() const;

  Communicator world() const;    // on the device
  Communicator control() const;  // on the CPU, also in a CUDA job: small integers and agreements
  /// A further group over all ranks; every rank calls it in the same order with the same name.
  Communicator group(const std::string& name);
  /// The same on the CPU, also in a CUDA job.
  Communicator host_group(const std::string& name);

  /// Null for a single process.
  std::shared_ptr<Watch> watch() const;
  /// This rank ends by an error: tells the peers (and torchrun) why. Nothing else may follow but
  /// the exit: leave with `_exit` or `quick_exit`, because the transport's threads may hang on a
  /// peer.
  void fail(const std::string& reason) noexcept;
  /// The ordered end of a job that went well.
  void finish();

 private:
  Mesh();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tautline::comm
