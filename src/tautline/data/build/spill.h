// Events on local disk, in partitions by a hash of their user, in the file's order inside each.
//
// A record: user (varint length, bytes), ticks (zigzag varint), ids (varint: item, categorical...),
// dense (float32...). About 20 bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tautline::data {

/// A local folder that is removed with all it holds when this goes.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& parent);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct RecordShape {
  size_t ids = 1;  // item and further categorical columns
  size_t dense = 0;
};

/// One event; `ids` and `dense` point to as many values as the shape says.
struct SpillRecord {
  std::string_view user;
  int64_t ticks = 0;
  const int64_t* ids = nullptr;
  const float* dense = nullptr;
};

/// A closed partition.
struct Partition {
  std::string path;
  int64_t bytes = 0, records = 0;
  int level = 0;  // how often it was split
};

/// Writes records to `count` files. Errors: UserError when the disk is full.
class SpillWriter {
 public:
  SpillWriter(const std::string& prefix, int64_t count, RecordShape shape, int level);
  ~SpillWriter();
  void add(const SpillRecord& record);
  std::vector<Partition> close();  // those that hold records, in order

 private:
  struct File {
    int descriptor = -1;
    std::string buffer;
    Partition partition;
  };
  void flush(File& file);
  std::vector<File> files_;
  RecordShape shape_;
  int level_;
  size_t buffer_bytes_;
};

/// Reads one partition from front to back through a window.
class SpillReader {
 public:
  SpillReader(const Partition& partition, RecordShape shape);
  ~SpillReader();
  SpillReader(const SpillReader&) = delete;
  SpillReader& operator=(const SpillReader&) = delete;
  /// False at the end. What the record points to is good until the next call.
  bool next(SpillRecord& record);

 private:
  void need(size_t bytes);  // so many in the window, or all that are left
  std::string path_;
  int descriptor_ = -1;
  std::vector<char> window_;
  size_t begin_ = 0, end_ = 0;
  RecordShape shape_;
  std::vector<int64_t> ids_;
  std::vector<float> dense_;
};

/// Splits partitions above `limit` bytes by further bits of the user's hash, until they are below
/// it or hold what cannot be split (one long history). Removes what it has split.
std::vector<Partition> split_large(std::vector<Partition> partitions, int64_t limit,
                                   RecordShape shape);

}  // namespace tautline::data
