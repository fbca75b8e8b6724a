// A TensorBoard event file. Records are those of TFRecord (u64 length, masked CRC-32C of it, bytes,
// masked CRC-32C of them); a record is a protocol buffer `Event` (tensorflow/core/util/event.proto
// and framework/summary.proto; the fields used here are named in event_file.cpp).
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace tautline::train {

class EventFile {
 public:
  /// Makes a file of its own in `folder` (so that a run's restarts lie side by side). Events that
  /// earlier files of the folder hold for steps after `resume_step` are declared void. Errors: a
  /// folder or file that cannot be made.
  EventFile(const std::string& folder, int64_t resume_step);
  /// One event with all the scalars. Errors: a file that cannot be written.
  void write(double wall_time, int64_t step,
             const std::vector<std::pair<std::string, double>>& scalars);

 private:
  void put(const std::string& event);
  std::string path_;
  std::ofstream out_;
};

/// CRC-32C (Castagnoli, RFC 3720 section 12.1), as TFRecord masks it.
uint32_t crc32c(const void* data, size_t bytes);
uint32_t masked(uint32_t crc);

}  // namespace tautline::train
