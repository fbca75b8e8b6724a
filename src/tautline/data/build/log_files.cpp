#include "tautline/data/build/log_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <sys/stat.h>
#include <utility>

#include "tautline/base/error.h"
#include "tautline/base/excerpt.h"
#include "tautline/data/arrow_status.h"

namespace tautline::data {
namespace {

namespace fs = std::filesystem;

/// What lies at a local path, links followed. Errors: nothing, a link that leads nowhere, what may
/// not be looked at.
struct stat look_at(const Location& place) {
  struct stat found {};
  if (stat(place.path.c_str(), &found) == 0) return found;
  const int reason = errno;
  std::error_code none;
  const fs::path target = fs::read_symlink(place.path, none);
  if (!none && reason == ELOOP)
    throw user_error(place.text, " is a link that leads round in a circle");
  if (!none && reason == ENOENT)
    throw user_error(place.text, " is a link to ", excerpt(target.string(), 255),
                     ", which is not there");
  if (reason == ENOENT || reason == ENOTDIR) throw user_error("there is no log at ", place.text);
  throw user_error("cannot look at ", place.text, ": ", std::strerror(reason));
}

/// A log is opened more than once: for its columns, its lines' numbers, its events.
void refuse_special(const Location& place, mode_t mode) {
  if (S_ISREG(mode)) return;
  const char* kind = S_ISFIFO(mode)                   ? "a pipe"
                     : S_ISSOCK(mode)                 ? "a socket"
                     : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
                                                      : "no file";
  throw user_error(place.text, " is ", kind,
                   ", which cannot be read more than once as a log is; write it to a file first");
}

bool left_out(const std::string& name) { return name.starts_with('.') || name.starts_with('_'); }

/// The files of a local folder and of those in it, as paths below it.
class LocalFolder {
 public:
  explicit LocalFolder(const Location& log) : log_(log) {}

  std::vector<std::string> files() {
    enter("", look_at(log_));
    return std::move(files_);
  }

 private:
  using Identity = std::pair<dev_t, ino_t>;

  void enter(const std::string& below, const struct stat& folder) {
    const Location place = below.empty() ? log_ : log_.child(below);
    const Identity identity{folder.st_dev, folder.st_ino};
    if (!above_.insert(identity).second)
      throw user_error(place.text, " is a link back to a folder that it lies in");
    std::error_code error;
    for (fs::directory_iterator entry(place.path, error), end; !error && entry != end;
         entry.increment(error))
      visit(below, entry->path().filename().string());
    if (error) throw user_error("cannot list ", place.text, ": ", error.message());
    above_.erase(identity);
  }

  void visit(const std::string& folder, const std::string& name) {
    if (left_out(name)) return;
    const std::string below = folder.empty() ? name : folder + "/" + name;
    const Location place = log_.child(below);
    const struct stat found = look_at(place);
    if (S_ISDIR(found.st_mode)) return enter(below, found);
    refuse_special(place, found.st_mode);
    files_.push_back(below);
  }

  const Location log_;
  std::set<Identity> above_;  // the folders that the walk is in
  std::vector<std::string> files_;
};

/// The same in a bucket, where there are neither links nor pipes.
std::vector<std::string> remote_files(const Location& log) {
  arrow::fs::FileSelector selector;
  selector.base_dir = log.path;
  selector.recursive = true;
  std::vector<std::string> files;
  for (const auto& info : unwrap(log.filesystem->GetFileInfo(selector), "cannot list ", log.text)) {
    const std::string below = info.path().substr(std::min(info.path().size(), log.path.size()));
    const bool hidden = below.find("/.") != std::string::npos || below.find("/_") != below.npos;
    if (info.IsFile() && !hidden) files.push_back(below.substr(1));
  }
  return files;
}

bool is_folder(const Location& log) {
  if (log.local) {
    const struct stat found = look_at(log);
    if (!S_ISDIR(found.st_mode)) refuse_special(log, found.st_mode);
    return S_ISDIR(found.st_mode);
  }
  const arrow::fs::FileType type = file_type(log);
  if (type == arrow::fs::FileType::NotFound) throw user_error("there is no log at ", log.text);
  return type == arrow::fs::FileType::Directory;
}

}  // namespace

std::vector<Location> log_files(const Location& log) {
  if (!is_folder(log)) return {log};
  std::vector<std::string> paths = log.local ? LocalFolder(log).files() : remote_files(log);
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
