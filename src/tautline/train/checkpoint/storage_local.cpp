// Local folders: plain POSIX, because Arrow's local file system has neither fsync nor an exchange.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

#include "tautline/base/error.h"
#include "tautline/train/checkpoint/storage.h"

namespace tautline::train {
namespace {

namespace fs = std::filesystem;

std::string reason() { return std::strerror(errno); }

class LocalOutput : public OutputFile {
 public:
  explicit LocalOutput(std::string path) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) throw user_error("cannot create ", path_, ": ", reason());
  }
  ~LocalOutput() override {
    if (fd_ >= 0) ::close(fd_);
  }
  LocalOutput(const LocalOutput&) = delete;
  LocalOutput& operator=(const LocalOutput&) = delete;

  void write(const void* data, int64_t bytes) override {
    const char* next = static_cast<const char*>(data);
    int64_t left = bytes;
    while (left > 0) {
      const ssize_t done = ::write(fd_, next, static_cast<size_t>(left));
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0)
        throw user_error("cannot write ", path_, " beyond ", written_, " bytes (", left,
                         " more were to follow): ", reason());
      next += done;
      left -= done;
      written_ += done;
    }
  }
  void finish() override {
    // Network file systems report a full disk only here.
    if (::fsync(fd_) != 0)
      throw user_error("cannot write the ", written_, " bytes of ", path_,
                       " to its disk: ", reason());
    const int fd = fd_;
    fd_ = -1;
    if (::close(fd) != 0) throw user_error("cannot close ", path_, ": ", reason());
  }

 private:
  std::string path_;
  int fd_ = -1;
  int64_t written_ = 0;
};

class LocalInput : public InputFile {
 public:
  explicit LocalInput(std::string path) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) throw user_error("cannot open ", path_, ": ", reason());
    struct stat status {};
    if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
      ::close(fd_);
      throw user_error("cannot read ", path_, ": it is not a file");
    }
    size_ = status.st_size;
  }
  ~LocalInput() override { ::close(fd_); }
  LocalInput(const LocalInput&) = delete;
  LocalInput& operator=(const LocalInput&) = delete;

  int64_t size() const override { return size_; }
  const std::string& name() const override { return path_; }
  void read_at(int64_t offset, int64_t bytes, void* out) override {
    char* next = static_cast<char*>(out);
    while (bytes > 0) {
      const ssize_t done = ::pread(fd_, next, static_cast<size_t>(bytes), offset);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) throw user_error("cannot read ", path_, " at byte ", offset, ": ", reason());
      if (done == 0)
        throw user_error(path_, " ends at byte ", offset, ", ", bytes, " bytes too early");
      next += done;
      offset += done;
      bytes -= done;
    }
  }

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw user_error("cannot open folder ", path, ": ", reason());
  const int result = ::fsync(fd);
  // Some network file systems cannot sync a folder (EINVAL): they order its entries themselves.
  const bool failed = result != 0 && errno != EINVAL && errno != ENOTSUP;
  const std::string why = failed ? reason() : "";
  ::close(fd);
  if (failed) throw user_error("cannot write folder ", path, " to its disk: ", why);
}

class LocalStorage : public Storage {
 public:
  explicit LocalStorage(std::string folder) : folder_(std::move(folder)) {}

  bool can_publish() const override { return true; }
  std::string path_of(const std::string& name) const override {
    return name.empty() ? folder_ : folder_ + "/" + name;
  }
  void create_folder(const std::string& name) override {
    std::error_code code;
    fs::create_directories(path_of(name), code);
    if (code) throw user_error("cannot create folder ", path_of(name), ": ", code.message());
  }
  std::unique_ptr<OutputFile> create(const std::string& name) override {
    return std::make_unique<LocalOutput>(path_of(name));
  }
  std::unique_ptr<InputFile> open(const std::string& name) override {
    return std::make_unique<LocalInput>(path_of(name));
  }
  bool exists(const std::string& name) override {
    std::error_code code;
    return fs::exists(path_of(name), code);
  }
  std::vector<std::string> list(const std::string& name) override {
    std::vector<std::string> names;
    std::error_code code;
    for (fs::directory_iterator entry(path_of(name), code), end; !code && entry != end;
         entry.increment(code))
      names.push_back(entry->path().filename().string());
    if (code && code != std::errc::no_such_file_or_directory)
      throw user_error("cannot list ", path_of(name), ": ", code.message());
    std::sort(names.begin(), names.end());
    return names;
  }
  void remove(const std::string& name) override {
    std::error_code code;
    fs::remove_all(path_of(name), code);
    if (code && code != std::errc::no_such_file_or_directory)
      throw user_error("cannot remove ", path_of(name), ": ", code.message());
  }
  void publish(const std::string& from, const std::string& to) override {
    sync_folder(path_of(from));
    rename_over(path_of(from), path_of(to));
    sync_folder(folder_);
  }

 private:
  static void rename_over(const std::string& from, const std::string& to) {
    if (::rename(from.c_str(), to.c_str()) == 0) return;
    if (errno == ENOTEMPTY || errno == EEXIST) {
      // An older `to`: the two change places, and what was there goes. Where the file system cannot
      // do that the old one goes first: it is replaced by the same step of the same run.
      if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
        fs::remove_all(from);
        return;
      }
      fs::remove_all(to);
      if (::rename(from.c_str(), to.c_str()) == 0) return;
    }
    throw user_error("cannot rename ", from, " to ", to, ": ", reason());
  }

  std::string folder_;
};

}  // namespace

std::unique_ptr<Storage> open_local_storage(const std::string& folder) {
  if (folder.empty()) throw user_error("an empty path names no checkpoint folder");
  return std::make_unique<LocalStorage>(fs::absolute(folder).lexically_normal().string());
}

}  // namespace tautline::train
