#include "tautline/base/folder_lock.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "tautline/base/error.h"

namespace tautline {
namespace {

constexpr auto kAgain = std::chrono::milliseconds(50);

/// EWOULDBLOCK: somebody has it. Any other error: this file system has none to give.
int try_lock(int descriptor, int kind) {
  while (::flock(descriptor, kind | LOCK_NB) != 0)
    if (errno != EINTR) return errno;
  return 0;
}

std::string this_process() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = 0;
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  std::array<char, 32> date{};
  if (::localtime_r(&now, &local))
    std::strftime(date.data(), date.size(), "%Y-%m-%d %H:%M:%S", &local);
  return "pid " + std::to_string(::getpid()) + " on " + host.data() + ", since " + date.data();
}

std::string holder(int descriptor) {
  std::array<char, 400> text{};
  const ssize_t size = ::pread(descriptor, text.data(), text.size() - 1, 0);
  const std::string line(text.data(), size > 0 ? static_cast<size_t>(size) : 0);
  return line.empty() ? "another program" : line.substr(0, line.find('\n'));
}

/// Best effort: on a full disk the lock holds without a name.
void sign(int descriptor) {
  const std::string line = this_process() + "\n";
  if (::ftruncate(descriptor, 0) != 0 || ::pwrite(descriptor, line.data(), line.size(), 0) < 0)
    return;
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) : path_(folder + "/" + kFolderLockName) {
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
}

FolderLock::~FolderLock() {
  if (held()) ::close(descriptor_);
}

FolderLock::FolderLock(FolderLock&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

/// Whoever had it before may have taken the file away between our open and our lock.
bool FolderLock::is_at_its_place() const {
  struct stat ours {
  }, there{};
  return ::fstat(descriptor_, &ours) == 0 && ::stat(path_.c_str(), &there) == 0 &&
         ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

FolderLock FolderLock::exclusive(const std::string& folder, const std::string& what,
                                 double patience_seconds) {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_seconds);
  // Some file systems (FUSE) number a file anew at each look: there no name stays at its place.
  constexpr int kMostMoves = 100;
  for (int moves = 0;;) {
    FolderLock lock(folder);
    if (!lock.held()) {
      const std::string why = std::strerror(errno);
      throw user_error(what, " cannot be written: ", why);
    }
    const int error = try_lock(lock.descriptor_, LOCK_EX);
    if (error == 0 && (lock.is_at_its_place() || ++moves > kMostMoves)) {
      sign(lock.descriptor_);
      return lock;
    }
    if (error != 0 && error != EWOULDBLOCK) return lock;
    if (std::chrono::steady_clock::now() >= until && error == EWOULDBLOCK)
      throw user_error(what, " is in use by ", holder(lock.descriptor_),
                       "; wait until that has ended, or name another folder");
    if (error == EWOULDBLOCK) std::this_thread::sleep_for(kAgain);
  }
}

FolderLock FolderLock::shared(const std::string& folder) {
  FolderLock lock(folder);
  if (lock.held() && try_lock(lock.descriptor_, LOCK_SH) == EWOULDBLOCK)
    throw user_error("the folder ", folder, " was taken by ", holder(lock.descriptor_));
  return lock;
}

void FolderLock::share() {
  if (!held() || try_lock(descriptor_, LOCK_SH) != EWOULDBLOCK) return;
  throw user_error(path_, " was taken by ", holder(descriptor_));
}

void FolderLock::remove() {
  if (!held()) return;
  ::unlink(path_.c_str());
  ::close(std::exchange(descriptor_, -1));
}

}  // namespace tautline
