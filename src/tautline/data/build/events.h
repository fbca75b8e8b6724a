// Events on their way from a log's files to the spill: batches of decoded columns.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tautline/data/build/build.h"
#include "tautline/data/uri.h"

namespace tautline::data {

/// Which columns are read, in the order in which they are kept.
struct LogColumns {
  std::string user, item, time;
  std::vector<std::string> categorical;  // action among them
  std::vector<std::string> dense;        // rating, dense, labels
  size_t labels = 0;                     // so many of `dense`, the last ones, are 0 or 1
  TimeUnit time_unit = TimeUnit::kSeconds;
  char delimiter = 0;
  bool header = true;

  /// user, item, time, categorical..., dense...
  std::vector<std::string> all() const;
  bool is_label(size_t of_dense) const { return of_dense + labels >= dense.size(); }
};

/// Ticks of EventBatch::ticks in one second: microseconds, or nanoseconds where the log has them.
int64_t ticks_per_second(TimeUnit unit);

struct EventBatch {
  int64_t rows = 0;
  std::vector<std::string_view> user, item;                // never empty texts
  std::vector<int64_t> ticks;                              // since 1970
  std::vector<std::vector<std::string_view>> categorical;  // empty text: absent
  std::vector<std::vector<float>> dense;                   // finite or infinite, never NaN
  std::vector<std::shared_ptr<const void>> owners;         // what the views look into
};

/// One file of the log, read from front to back by one thread.
class EventSource {
 public:
  virtual ~EventSource() = default;
  virtual bool next(EventBatch& batch) = 0;  // false at the end
  virtual double share_read() const = 0;     // 0..1
};

std::unique_ptr<EventSource> open_delimited(const Location& file, const LogColumns& columns);
std::unique_ptr<EventSource> open_parquet(const Location& file, const LogColumns& columns);

/// By the file's first bytes (Parquet's magic) or its extension.
bool is_parquet(const Location& file);
std::unique_ptr<EventSource> open_events(const Location& file, const LogColumns& columns);

}  // namespace tautline::data
