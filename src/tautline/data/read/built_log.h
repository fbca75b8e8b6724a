// A built log, open: its statistics, the shape that sampling needs, and decoding of row groups.
// format.h says what lies on disk.
//
// Opening reads every footer and the column `length` (4 bytes a user stay in memory: 0.4 GB for
// 10^8 users). Row groups are decoded when they are asked for.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <arrow/filesystem/filesystem.h>
#include <parquet/metadata.h>

#include "tautline/data/read/event_block.h"
#include "tautline/data/read/sampling.h"
#include "tautline/data/uri.h"
#include "tautline/workload/workload.h"

namespace tautline::data {

class BuiltLog {
 public:
  /// `threads` read footers and lengths. Errors (UserError): those of read_log_statistics, a part
  /// that is missing, damaged or cut short, a column that is missing or of another type.
  BuiltLog(const std::string& log, EventColumns columns, int threads);

  /// What messages call it: no credentials.
  const std::string& text() const { return folder_.text; }
  const LogStatistics& statistics() const { return statistics_; }
  const LogShape& shape() const { return shape_; }
  /// Memory of all events decoded.
  int64_t decoded_bytes() const { return statistics_.events * columns_.bytes_per_event(); }

  /// Decodes row group `block` (of shape().block_begin); keep: one flag a row, or empty for all.
  /// Any number of threads may call it. Errors (UserError): damage, an id beyond its vocabulary,
  /// lists whose lengths differ from `length`, times that run backwards.
  EventBlock decode(int64_t block, const std::vector<uint8_t>& keep = {}) const;

 private:
  struct Part {
    arrow::fs::FileInfo file;
    std::string text;  // for messages
    std::shared_ptr<parquet::FileMetaData> metadata;
    std::vector<int32_t> lengths;
  };
  struct RowGroup {
    int32_t part, index;
  };
  void read_part(int64_t part);
  void check_columns(const Part& part) const;
  std::string name_of(int64_t block) const;

  Location folder_;
  LogStatistics statistics_;
  EventColumns columns_;
  std::vector<Part> parts_;
  std::vector<RowGroup> row_groups_;
  LogShape shape_;
};

}  // namespace tautline::data
