#include "tautline/base/new_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>

#include "tautline/base/error.h"

namespace tautline {
namespace {

namespace fs = std::filesystem;

/// Where `path` leads to if it is a link: the file changes, the link stays.
std::string behind_links(const std::string& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  const fs::path target = fs::canonical(path, error);
  return error ? path : target.string();
}

bool is_special(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

/// Whether the disk has it. Some file systems sync nothing, and some devices cannot.
bool synced(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool done = ::fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP;
  const int error = errno;
  ::close(descriptor);
  errno = error;
  return done;
}

}  // namespace

NewFile::NewFile(const std::string& path) : path_(path), target_(behind_links(path)) {
  std::error_code error;
  if (fs::is_directory(target_, error)) fail(EISDIR);
  written_ = is_special(target_) ? target_ : target_ + ".tmp";
  errno = 0;
  out_.open(written_, std::ios::binary | std::ios::trunc);
  if (!out_) fail(errno);
}

NewFile::~NewFile() {
  if (written_.empty() || written_ == target_) return;
  out_.close();
  ::unlink(written_.c_str());
}

void NewFile::fail(int error) const {
  throw user_error("cannot write ", path_, error == 0 ? "" : ": ",
                   error == 0 ? "" : std::strerror(error));
}

void NewFile::finish() {
  const int before = out_ ? 0 : errno;
  errno = 0;
  out_.close();
  if (!out_) fail(errno != 0 ? errno : before);
  if (written_ == target_) return;
  if (!synced(written_) || std::rename(written_.c_str(), target_.c_str()) != 0) fail(errno);
  written_.clear();
}

void write_text_file(const std::string& path, std::string_view text) {
  NewFile file(path);
  file.out() << text;
  file.finish();
}

}  // namespace tautline
