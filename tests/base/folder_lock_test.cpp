#include "tautline/base/folder_lock.h"

#include <cstdlib>
#include <filesystem>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tautline/base/error.h"

namespace tautline {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class FolderLockTest : public testing::Test {
 protected:
  FolderLockTest() {
    std::string name = (fs::temp_directory_path() / "tautline-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    folder_ = name;
  }
  ~FolderLockTest() override { fs::remove_all(folder_); }

  /// The sentence that another process gets; empty: it had the lock.
  std::string from_another_process(double patience = 0) const {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    const pid_t child = ::fork();
    if (child == 0) {
      std::string sentence;
      try {
        const FolderLock lock = FolderLock::exclusive(folder_, "the folder x", patience);
      } catch (const UserError& error) {
        sentence = error.what();
      }
      (void)!::write(ends[1], sentence.data(), sentence.size());
      ::_exit(0);
    }
    ::close(ends[1]);
    std::string sentence(1000, 0);
    const ssize_t size = ::read(ends[0], sentence.data(), sentence.size());
    sentence.resize(size > 0 ? static_cast<size_t>(size) : 0);
    ::close(ends[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    return sentence;
  }

  std::string folder_;
};

TEST_F(FolderLockTest, ANewcomerIsToldWhoHasIt) {
  FolderLock lock = FolderLock::exclusive(folder_, "mine");
  EXPECT_THAT(from_another_process(),
              testing::AllOf(
                  HasSubstr("the folder x is in use by pid " + std::to_string(::getpid()) + " on "),
                  HasSubstr(", since 2"), HasSubstr("name another folder")));
  lock = FolderLock();
  EXPECT_EQ(from_another_process(), "");
}

TEST_F(FolderLockTest, SharersHoldNewcomersOutToo) {
  FolderLock first = FolderLock::exclusive(folder_, "mine");
  EXPECT_THROW(FolderLock::shared(folder_), UserError);
  first.share();
  const FolderLock second = FolderLock::shared(folder_);
  first = FolderLock();
  EXPECT_THAT(from_another_process(), HasSubstr("in use"));
}

TEST_F(FolderLockTest, EndsWithAProcessThatIsKilled) {
  const pid_t child = ::fork();
  if (child == 0) {
    const FolderLock lock = FolderLock::exclusive(folder_, "mine");
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(from_another_process(), "");
}

TEST_F(FolderLockTest, WaitsForOneThatIsAboutToEnd) {
  FolderLock lock = FolderLock::exclusive(folder_, "mine");
  const pid_t child = ::fork();  // holds the very same lock for a moment longer
  if (child == 0) {
    ::sleep(2);
    ::_exit(0);
  }
  lock = FolderLock();
  EXPECT_THAT(from_another_process(), HasSubstr("in use"));
  EXPECT_EQ(from_another_process(60), "");
  int status = 0;
  ::waitpid(child, &status, 0);
}

// Removing the file must not leave two that believe they have the folder: each its own file.
TEST_F(FolderLockTest, RemovedWhileOthersWait) {
  FolderLock lock = FolderLock::exclusive(folder_, "mine");
  lock.remove();
  EXPECT_TRUE(fs::is_empty(folder_));
  EXPECT_FALSE(lock.held());
  const FolderLock next = FolderLock::exclusive(folder_, "mine");
  EXPECT_THAT(from_another_process(), HasSubstr("in use"));
}

TEST_F(FolderLockTest, AFolderThatIsNotThere) {
  EXPECT_FALSE(FolderLock::shared(folder_ + "/no").held());
  try {
    FolderLock::exclusive(folder_ + "/no", "the folder /no");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the folder /no cannot be written: No such file"));
  }
}

}  // namespace
}  // namespace tautline
