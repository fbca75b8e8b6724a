// Collectives of one group of ranks, over a c10d back end that is given from outside (Gloo on CPUs,
// NCCL on GPUs, or a PyTorch job's own). No transport of our own.
//
// Every call starts the collective and returns a Work at once. All ranks of a group start the same
// collectives in the same order. A group of one rank moves nothing and never waits.
//
// W ranks, n elements, E row width. Bytes that a rank sends are formulas (bytes.h) and are
// recorded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class ProcessGroup;
}  // namespace c10d

namespace tautline::comm {

class Watch;

/// What one collective did on this rank; seconds on the steady clock.
/// CPU: start is the arrival (the true start, when the last rank arrived, is known only once the
/// ranks' timelines are joined: the latest arrival of the same group and sequence), end is the
/// completion. CUDA: times of the stream, taken from events when `Communicator::flush_records` is
/// called.
struct CollectiveRecord {
  std::string name;   // the caller's: "bucket.2", "item.ids"
  std::string kind;   // all_to_all, all_reduce, all_gather, broadcast, barrier, reduce_scatter
  std::string group;  // of the communicator
  double arrival = 0, start = 0, end = 0;
  double wait_start = 0, wait_end = 0;  // in which the caller's thread (CUDA: stream) stood waiting
  double bytes = 0;                     // sent by this rank
  int64_t sequence = 0;                 // of this collective in its group
};
using RecordHook = std::function<void(const CollectiveRecord&)>;

double steady_seconds();

/// A collective under way. Copies share it. The tensors live until it is done.
class Work {
 public:
  Work() = default;  // nothing to wait for
  /// CPU: returns when the result is there. CUDA: the current stream waits, the host does not.
  /// Throws RankFailure where a peer is gone; it then names that peer if the group has a Watch.
  void wait();
  /// CPU: like wait, but gives up after `seconds` and returns false.
  bool wait_for(double seconds);
  bool done() const;

  struct State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

class Communicator {
 public:
  enum class Reduction { kSum, kMax };

  /// A group of one rank: no communication.
  explicit Communicator(at::Device device);
  Communicator(const c10::intrusive_ptr<c10d::Backend>& backend, at::Device device,
               std::string group, std::shared_ptr<Watch> watch = nullptr);

  int rank() const;
  int size() const;
  at::Device device() const;
  const std::string& group() const;

  /// out [sum out_splits, ...] and in [sum in_splits, ...]: rows; splits have W entries on the
  /// host. out's rows are in order of source rank. Sends (sum in_splits - in_splits[rank]) rows.
  Work all_to_all_rows(at::Tensor out, at::Tensor in, const std::vector<int64_t>& out_splits,
                       const std::vector<int64_t>& in_splits, const std::string& name);
  /// In place, over all ranks. Sends 2 (W - 1) / W n elements.
  Work all_reduce(at::Tensor tensor, Reduction reduction, const std::string& name);
  /// out [W * n, ...] from in [n, ...] of each rank, in order of rank. Sends (W - 1) n elements.
  Work all_gather(at::Tensor out, at::Tensor in, const std::string& name);
  /// in [W * n, ...], out [n, ...]: the sum over ranks of their rank-th part. Sends (W - 1) n
  /// elements.
  Work reduce_scatter(at::Tensor out, at::Tensor in, const std::string& name);
  /// In place, from `root`. Counted as n elements sent by the root.
  Work broadcast(at::Tensor tensor, int root, const std::string& name);
  /// Returns when every rank has arrived (on CUDA too: the host waits).
  void barrier(const std::string& name);

  /// Called once for each collective, by the thread that waited for it (CPU) or that flushes
  /// (CUDA).
  void set_record_hook(RecordHook hook);
  /// CUDA: hands over the records of what has been completed so far; synchronise the device before.
  void flush_records();

  /// Ends all that is under way, on this rank (NCCL: aborts the communicator). Idempotent, any
  /// thread.
  void abort();

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

/// The back end for `device` of a process group that someone else made (a PyTorch job's).
Communicator communicator_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                             at::Device device);

}  // namespace tautline::comm
