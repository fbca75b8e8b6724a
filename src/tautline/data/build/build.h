// `tautline data build`: an event log becomes per-user sequences on disk (data/format.h).
//
// The log is a delimited text (gz, zst or plain) or Parquet, one event a row, in any order; or a
// folder of such files, read in order of their names. It is read once: tokens become provisional
// ids, events are spilled to partitions by a hash of the user. Then ids are dealt by descending
// count, and each partition, small enough to sort in memory, becomes one Parquet shard.
//
// Memory grows with the vocabularies (items and further categorical columns) and with nothing else:
// not with events, not with users. Disk: the spill, about 20 bytes an event, under `scratch`.
//
// Nothing half-written passes as whole: OUT/workload.yaml is written last, and what was written
// before an error is removed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tautline/workload/workload.h"

namespace tautline::data {

/// What one unit of an integer time column is. Order within a user is by the whole value; the built
/// log keeps whole seconds.
enum class TimeUnit { kSeconds, kMilliseconds, kMicroseconds, kNanoseconds };

struct BuildOptions {
  std::string log;               // file, folder or Arrow file system URI
  std::string out;               // folder or URI: must be empty or absent, unless `overwrite`
  std::string user, item, time;  // column names; empty: the header's usual name for it
  std::string action;            // optional, one more categorical column
  std::string rating;            // optional, one more dense column
  std::vector<std::string> categorical;    // an empty field is id 0 (absent)
  std::vector<std::string> dense, labels;  // numbers; empty and NaN are errors
  char delimiter = 0;                      // 0: comma for .csv, tab for .tsv, else what line 1 has
  bool header = true;                      // false: columns are given by number, the first is 1
  TimeUnit time_unit = TimeUnit::kSeconds;
  std::string name;  // of the log; empty: the file's name without extensions
  int threads = 0;   // 0: as many as the machine has
  bool baselines = true;
  int64_t rule_events = 2'000'000;  // sequential rules learn from users with about so many
  bool overwrite = false;
  std::string scratch;  // local folder for the spill; empty: inside OUT if local, else the system's
  int64_t partition_bytes = 16 << 20;  // of the spill that one thread sorts at a time
};

struct BuildProgress {
  const char* phase = "";  // "read", "write", "baselines"
  double share = 0.0;      // of the phase, 0..1
  int64_t events = 0;
};
using BuildProgressFunction = std::function<void(const BuildProgress&)>;

/// Errors are UserError, one sentence with file, line or row group, column and value. `warn` gets one
/// sentence where the times are unlike any log's (times.h).
LogStatistics build_log(const BuildOptions& options, const BuildProgressFunction& progress = {},
                        const std::function<void(const std::string&)>& warn = {});

/// "s", "ms", "us", "ns".
TimeUnit time_unit_from(const std::string& text);

}  // namespace tautline::data
