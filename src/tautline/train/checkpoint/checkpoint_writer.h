// Checkpoints beside the training: the caller copies what is to be saved, a thread writes it.
//
//   CheckpointWriter writer(storage, {.rank = r, .ranks = W, .keep = 3}, exchange);
//   writer.save(manifest without files, Snapshot::copy_of(tensors));   returns at once
//   ...
//   writer.wait();   before the run ends; and save() waits for the one before it
//
// Every rank calls save() for the same steps. The ranks' threads tell each other how their files
// went through `exchange`, which must therefore be usable beside the training's collectives (a
// key-value store, not a process group). Twice a save: after the files, and after the commit.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tautline/train/checkpoint/checkpoint.h"
#include "tautline/train/checkpoint/checkpoint_reader.h"

namespace tautline::train {

/// Tensors with the memory that they lie in.
class Snapshot {
 public:
  /// Copies every tensor's bytes, so that the originals may change.
  static Snapshot copy_of(std::span<const CheckpointTensor> tensors);
  /// The caller's own copies; `owner` keeps them alive.
  Snapshot(std::vector<CheckpointTensor> tensors, std::shared_ptr<const void> owner)
      : tensors_(std::move(tensors)), owner_(std::move(owner)) {}
  std::span<const CheckpointTensor> tensors() const { return tensors_; }

 private:
  std::vector<CheckpointTensor> tensors_;
  std::shared_ptr<const void> owner_;
};

struct WriterOptions {
  int rank = 0, ranks = 1;
  int keep = 3;  // latest checkpoints that stay; 0: all
};

class CheckpointWriter {
 public:
  CheckpointWriter(std::shared_ptr<Storage> storage, WriterOptions options,
                   Exchange exchange = exchange_alone);
  ~CheckpointWriter();  // waits; an error that nobody asked for is lost
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Waits for the save before it, then starts this one. manifest.files and .ranks are filled in.
  /// `keep_also`: steps that stay beside the latest, such as the best. Throws the last save's
  /// error.
  void save(Manifest manifest, Snapshot snapshot, std::set<int64_t> keep_also = {});
  /// Returns when the last save is committed on all ranks. If any rank failed, every rank's wait()
  /// throws the same UserError, nothing of that save stays, and the checkpoint before it is good.
  void wait();
  bool busy() const;
  /// Step of the last committed save; -1: none yet.
  int64_t committed_step() const { return committed_; }
  /// Of the last finished save: seconds in the thread, and bytes of this rank's file.
  double last_seconds() const { return seconds_; }
  int64_t last_bytes() const { return bytes_; }

 private:
  void run(Manifest manifest, const Snapshot& snapshot, const std::set<int64_t>& keep_also);
  std::string conclude(Manifest manifest, const std::vector<std::string>& outcomes,
                       const std::set<int64_t>& keep_also);

  std::shared_ptr<Storage> storage_;
  WriterOptions options_;
  Exchange exchange_;
  std::thread thread_;
  std::atomic<bool> running_{false};
  std::exception_ptr error_;
  std::atomic<int64_t> committed_{-1};
  std::atomic<double> seconds_{0};
  std::atomic<int64_t> bytes_{0};
};

}  // namespace tautline::train
