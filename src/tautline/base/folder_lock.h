// A folder in use: one program at a time writes a run's folder or a built log.
//
//   FolderLock lock = FolderLock::exclusive("runs/a", "the run's folder runs/a", patience);
//   lock.share();                                            // its other ranks may join now
//   FolderLock::shared("runs/a");                            // they do, and hold out newcomers too
//
// The lock is the kernel's (flock of FOLDER/.lock): it ends with the process however that ends, so
// there is nothing to clean up after a crash. The file's text says who has it. Where a file system
// has no locks the folder is used without one.
#pragma once

#include <string>

namespace tautline {

class FolderLock {
 public:
  FolderLock() = default;  // holds nothing
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;

  /// The folder must be there. Waits up to `patience_seconds` for one that is about to end. `what`
  /// begins the error's sentence: "... is in use by pid 17 on gpu07, since 2026-11-30 18:37:27".
  static FolderLock exclusive(const std::string& folder, const std::string& what,
                              double patience_seconds = 0);
  /// Beside others that share. Holds nothing where the folder cannot be seen from here.
  static FolderLock shared(const std::string& folder);

  /// From exclusive to shared.
  void share();
  /// Lets go of an exclusive lock and takes the file away.
  void remove();
  bool held() const { return descriptor_ >= 0; }

 private:
  explicit FolderLock(const std::string& folder);
  bool is_at_its_place() const;

  std::string path_;
  int descriptor_ = -1;
};

inline constexpr char kFolderLockName[] = ".lock";

}  // namespace tautline
