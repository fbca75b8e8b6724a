// The folder that a built log is written to: empty before, and whole or gone after.
#pragma once

#include <string>
#include <vector>

#include "tautline/base/folder_lock.h"
#include "tautline/data/uri.h"
#include "tautline/workload/workload.h"

namespace tautline::data {

class LogFolder {
 public:
  /// Looks, and makes the folder if it is not there. Errors: it holds something and `overwrite` is
  /// off, or holds what no build wrote, or another build is writing it (seen on local disks).
  LogFolder(const std::string& uri, bool overwrite);
  /// After begin() and without finish(): removes what was written.
  ~LogFolder();
  LogFolder(const LogFolder&) = delete;
  LogFolder& operator=(const LogFolder&) = delete;

  /// Removes the log that was there, only now that the new one has been read without an error.
  void begin();
  Location shard(int64_t number) const;  // part-00000.parquet
  Location vocabulary(const std::string& column) const;
  const Location& location() const { return folder_; }
  /// Writes workload.yaml: from here on the log is whole.
  void finish(const LogStatistics& statistics);

 private:
  std::vector<std::string> replaceable(bool overwrite) const;
  void remove_log();
  Location folder_;
  FolderLock lock_;
  bool made_ = false, begun_ = false, finished_ = false;
};

}  // namespace tautline::data
