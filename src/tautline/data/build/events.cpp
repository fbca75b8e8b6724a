#include "tautline/data/build/events.h"

#include <algorithm>
#include <cstring>

#include <arrow/buffer.h>
#include <arrow/io/interfaces.h>

#include "tautline/base/error.h"
#include "tautline/data/arrow_status.h"

namespace tautline::data {

std::vector<std::string> LogColumns::all() const {
  std::vector<std::string> names = {user, item, time};
  names.insert(names.end(), categorical.begin(), categorical.end());
  names.insert(names.end(), dense.begin(), dense.end());
  return names;
}

bool is_parquet(const Location& file) {
  if (file.path.ends_with(".parquet") || file.path.ends_with(".pq")) return true;
  auto input = unwrap(file.filesystem->OpenInputFile(file.path), "cannot open ", file.text);
  const auto magic = unwrap(input->ReadAt(0, 4), "cannot read ", file.text);
  return magic->size() == 4 && std::memcmp(magic->data(), "PAR1", 4) == 0;
}

std::unique_ptr<EventSource> open_events(const Location& file, const LogColumns& columns) {
  return is_parquet(file) ? open_parquet(file, columns) : open_delimited(file, columns);
}

std::vector<Location> log_files(const Location& log) {
  const arrow::fs::FileType type = file_type(log);
  if (type == arrow::fs::FileType::NotFound) throw user_error("there is no log at ", log.text);
  if (type == arrow::fs::FileType::File) return {log};
  arrow::fs::FileSelector selector;
  selector.base_dir = log.path;
  selector.recursive = true;
  std::vector<std::string> paths;
  for (const auto& info : unwrap(log.filesystem->GetFileInfo(selector), "cannot list ", log.text)) {
    const std::string below = info.path().substr(std::min(info.path().size(), log.path.size()));
    const bool hidden = below.find("/.") != std::string::npos || below.find("/_") != below.npos;
    if (info.IsFile() && !hidden) paths.push_back(below.substr(1));
  }
  if (paths.empty()) throw user_error("the folder ", log.text, " holds no log files");
  std::sort(paths.begin(), paths.end());
  std::vector<Location> files;
  for (const std::string& path : paths) files.push_back(log.child(path));
  return files;
}

int64_t file_size(const Location& file) {
  return unwrap(file.filesystem->GetFileInfo(file.path), "cannot look at ", file.text).size();
}

}  // namespace tautline::data
