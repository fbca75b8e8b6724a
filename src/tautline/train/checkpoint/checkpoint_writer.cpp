#include "tautline/train/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include <nlohmann/json.hpp>

#include "tautline/base/error.h"

namespace tautline::train {
namespace {

// One rank's word to the others: its file's entry, or what went wrong.
std::string done_text(const FileEntry& entry) { return "+" + to_text(entry); }
std::string failed_text(const std::string& why) { return "-" + why; }

std::string first_failure(const std::vector<std::string>& outcomes) {
  for (const std::string& outcome : outcomes)
    if (outcome.empty() || outcome.front() != '+')
      return outcome.empty() ? "a rank said nothing" : outcome.substr(1);
  return "";
}

}  // namespace

Snapshot Snapshot::copy_of(std::span<const CheckpointTensor> tensors) {
  constexpr int64_t kAlign = 64;
  const auto room = [](const CheckpointTensor& tensor) {
    return (tensor.view.bytes() + kAlign - 1) / kAlign * kAlign;
  };
  int64_t bytes = 0;
  for (const CheckpointTensor& tensor : tensors) bytes += room(tensor);
  // Not zeroed first: the copy is the only pass over this memory.
  const std::shared_ptr<char> memory(new char[static_cast<size_t>(bytes)],
                                     std::default_delete<char[]>());
  std::vector<CheckpointTensor> copies(tensors.begin(), tensors.end());
  char* next = memory.get();
  for (CheckpointTensor& tensor : copies) {
    if (tensor.view.bytes() > 0)
      std::memcpy(next, tensor.view.data, static_cast<size_t>(tensor.view.bytes()));
    tensor.view.data = next;
    next += room(tensor);
  }
  return {std::move(copies), memory};
}

CheckpointWriter::CheckpointWriter(std::shared_ptr<Storage> storage, WriterOptions options,
                                   Exchange exchange)
    : storage_(std::move(storage)), options_(options), exchange_(std::move(exchange)) {}

CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable()) thread_.join();
}

bool CheckpointWriter::busy() const { return running_; }

void CheckpointWriter::wait() {
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void CheckpointWriter::save(Manifest manifest, Snapshot snapshot, std::set<int64_t> keep_also) {
  wait();
  running_ = true;
  thread_ = std::thread([this, manifest = std::move(manifest), snapshot = std::move(snapshot),
                         keep_also = std::move(keep_also)]() mutable {
    try {
      run(std::move(manifest), snapshot, keep_also);
    } catch (...) {
      error_ = std::current_exception();
    }
    running_ = false;
  });
}

void CheckpointWriter::run(Manifest manifest, const Snapshot& snapshot,
                           const std::set<int64_t>& keep_also) {
  const auto start = std::chrono::steady_clock::now();
  manifest.ranks = options_.ranks;
  std::string outcome;
  try {
    const FileEntry entry = write_rank_file(
        *storage_, {manifest.step, options_.rank, options_.ranks}, snapshot.tensors());
    bytes_ = entry.bytes;
    outcome = done_text(entry);
  } catch (const std::exception& error) {  // whatever it is: the peers wait for this rank's word
    outcome = failed_text(error.what());
  }
  const int64_t step = manifest.step;
  const std::vector<std::string> outcomes = exchange_(outcome);
  std::string failure;
  if (options_.rank == 0) failure = conclude(std::move(manifest), outcomes, keep_also);
  failure = first_failure(exchange_(failure.empty() ? "+" : failed_text(failure)));
  if (!failure.empty()) throw UserError(failure);
  committed_ = step;
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Rank 0's part: commits if every file is there; what went wrong, or nothing.
std::string CheckpointWriter::conclude(Manifest manifest, const std::vector<std::string>& outcomes,
                                       const std::set<int64_t>& keep_also) {
  const std::string step = "the checkpoint of step " + std::to_string(manifest.step);
  std::string failure = first_failure(outcomes);
  try {
    if (failure.empty()) {
      for (const std::string& outcome : outcomes)
        manifest.files.push_back(file_entry_from_text(outcome.substr(1)));
      commit(*storage_, manifest);
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  if (failure.empty()) {
    try {
      std::set<int64_t> stay = keep_also;
      stay.insert(manifest.step);  // also where an older run left later steps
      keep_latest(*storage_, options_.keep, stay);
      return "";
    } catch (const std::exception& error) {
      return step + " is saved, but those before it could not be removed: " + error.what();
    }
  }
  try {
    abandon(*storage_, manifest.step);
  } catch (const std::exception&) {
    // The first error is the one to tell; what is left is never taken for a checkpoint.
  }
  return step + " was not saved: " + failure;
}

}  // namespace tautline::train
