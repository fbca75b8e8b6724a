#include "tautline/data/log_folder.h"

#include <cstdio>

#include <arrow/io/interfaces.h>

#include "tautline/base/config.h"
#include "tautline/base/error.h"
#include "tautline/base/excerpt.h"
#include "tautline/data/arrow_status.h"
#include "tautline/workload/workload_fields.h"

namespace tautline::data {
namespace {

/// "part-00012.parquet" as shard() names it, and not "part-00012-c000.snappy.parquet" of others.
bool is_shard(const std::string& name) {
  const std::string before = "part-", after = ".parquet";
  if (!name.starts_with(before) || !name.ends_with(after)) return false;
  const auto number = name.substr(before.size(), name.size() - before.size() - after.size());
  return number.size() >= 5 && number.find_first_not_of("0123456789") == number.npos;
}

bool written_by_build(const std::string& name) {
  return name == "vocabulary" || name == "workload.yaml" || name == "workload.yaml.partial" ||
         is_shard(name) || name.starts_with(".spill-");
}

}  // namespace

LogFolder::LogFolder(const std::string& uri, bool overwrite) : folder_(open_filesystem(uri)) {
  const arrow::fs::FileType type = file_type(folder_);
  if (type == arrow::fs::FileType::File) throw user_error(folder_.text, " is a file, not a folder");
  if (type == arrow::fs::FileType::Unknown)
    throw user_error(folder_.text, " is a pipe, a socket or a device, not a folder");
  (void)replaceable(overwrite);  // before anything is made
  made_ = type == arrow::fs::FileType::NotFound;
  check(folder_.filesystem->CreateDir(folder_.path, true), "cannot create ", folder_.text);
  if (folder_.local) lock_ = FolderLock::exclusive(folder_.path, "the folder " + folder_.text);
  std::vector<std::string> names;
  try {
    names = replaceable(overwrite);  // another build may have ended meanwhile
  } catch (const UserError&) {
    lock_.remove();
    throw;
  }
  for (const std::string& name : names)  // of a build that was killed
    if (name.rfind(".spill-", 0) == 0)
      (void)folder_.filesystem->DeleteDir(folder_.child(name).path);
}

/// What the folder holds, all of it a build's.
std::vector<std::string> LogFolder::replaceable(bool overwrite) const {
  std::vector<std::string> names = list_folder(folder_);
  std::erase(names, kFolderLockName);
  if (!names.empty() && !overwrite)
    throw user_error("the folder ", folder_.text,
                     " is not empty; name another, or replace what it holds with --overwrite");
  for (const std::string& name : names)
    if (!written_by_build(name))
      throw user_error("the folder ", folder_.text, " holds ", excerpt(name),
                       ", which no build wrote; --overwrite only replaces a built log");
  return names;
}

void LogFolder::begin() {
  begun_ = true;
  remove_log();
  check(folder_.filesystem->CreateDir(folder_.child("vocabulary").path, true), "cannot create ",
        folder_.text);
}

LogFolder::~LogFolder() {
  try {
    if (begun_ && !finished_) remove_log();
    if (made_ && !finished_) (void)folder_.filesystem->DeleteDir(folder_.path);
  } catch (const UserError&) {  // the error that brought us here is the one to tell
  }
  lock_.remove();  // last: until here the folder is ours
}

/// workload.yaml goes first: at no moment does half a log pass as whole.
void LogFolder::remove_log() {
  const auto names = list_folder(folder_);
  for (const std::string& name : names)
    if (name.rfind("workload.yaml", 0) == 0)
      check(folder_.filesystem->DeleteFile(folder_.child(name).path), "cannot remove ",
            folder_.child(name).text);
  for (const std::string& name : names) {
    const Location place = folder_.child(name);
    if (name != "vocabulary" && !is_shard(name)) continue;
    const bool folder = file_type(place) == arrow::fs::FileType::Directory;
    check(folder ? folder_.filesystem->DeleteDir(place.path)
                 : folder_.filesystem->DeleteFile(place.path),
          "cannot remove ", place.text);
  }
}

Location LogFolder::shard(int64_t number) const {
  char name[40];
  std::snprintf(name, sizeof name, "part-%05lld.parquet", static_cast<long long>(number));
  return folder_.child(name);
}

Location LogFolder::vocabulary(const std::string& column) const {
  return folder_.child("vocabulary").child(column + ".parquet");
}

void LogFolder::finish(const LogStatistics& statistics) {
  const Location last = folder_.child("workload.yaml");
  // A rename makes it appear whole on a disk; in a bucket a PUT does.
  const Location file = folder_.local ? folder_.child("workload.yaml.partial") : last;
  const std::string text = to_yaml(statistics);
  auto sink = unwrap(file.filesystem->OpenOutputStream(file.path), "cannot create ", file.text);
  check(sink->Write(text.data(), static_cast<int64_t>(text.size())), "cannot write ", file.text);
  check(sink->Close(), "cannot write ", file.text);
  if (folder_.local)
    check(folder_.filesystem->Move(file.path, last.path), "cannot rename ", file.text);
  finished_ = true;
}

}  // namespace tautline::data
