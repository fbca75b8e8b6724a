// Files that are whole or not there, and what the machine's own errors say.
#include "tautline/base/new_file.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <new>
#include <sys/resource.h>
#include <system_error>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tautline/base/error.h"
#include "tautline/base/system_error.h"
#include "tautline/base/utf8.h"

namespace tautline {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class NewFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tautline_new_file_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  static std::string text_of(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::string error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  }
  int64_t files() const { return std::distance(fs::directory_iterator(dir_), {}); }
  fs::path dir_;
};

TEST_F(NewFileTest, TakesThePlaceAtTheEnd) {
  write_text_file(path("a"), "old");
  {
    NewFile file(path("a"));
    file.out() << "new" << std::flush;
    EXPECT_EQ(text_of(path("a")), "old");
    file.finish();
  }
  EXPECT_EQ(text_of(path("a")), "new");
  EXPECT_EQ(files(), 1);
}

TEST_F(NewFileTest, WhatIsNotFinishedLeavesWhatWasThere) {
  write_text_file(path("a"), "old");
  {
    NewFile file(path("a"));
    file.out() << "half" << std::flush;
  }
  EXPECT_EQ(text_of(path("a")), "old");
  EXPECT_EQ(files(), 1);
}

// A limit on the size of files stands for a full disk.
TEST_F(NewFileTest, ADiskThatFillsLeavesWhatWasThereAndSaysWhy) {
  write_text_file(path("a"), "old");
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{100'000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string in_one =
      error_of([&] { write_text_file(path("a"), std::string(300'000, 'x')); });
  const std::string in_lines = error_of([&] {
    NewFile file(path("a"));
    for (int line = 0; line < 100'000; ++line) file.out() << line << '\n';
    file.finish();
  });
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(in_one, "cannot write " + path("a") + ": File too large");
  EXPECT_EQ(in_lines, in_one);
  EXPECT_EQ(text_of(path("a")), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(NewFileTest, FoldersLinksAndDevices) {
  EXPECT_THAT(error_of([&] { write_text_file(dir_.string(), "x"); }), HasSubstr("Is a directory"));
  EXPECT_THAT(error_of([&] { write_text_file(path("no/a"), "x"); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of([&] { write_text_file(path(std::string(300, 'a')), "x"); }),
              HasSubstr("File name too long"));
  fs::create_symlink("loop", path("loop"));
  EXPECT_THAT(error_of([&] { write_text_file(path("loop/a"), "x"); }),
              HasSubstr("Too many levels of symbolic links"));
  // The link stays, and the file behind it changes.
  write_text_file(path("file"), "old");
  fs::create_symlink("file", path("link"));
  write_text_file(path("link"), "new");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(text_of(path("file")), "new");
  // There is nothing to replace in a device.
  fs::create_symlink("/dev/full", path("full"));
  EXPECT_EQ(error_of([&] { write_text_file(path("full"), "x"); }),
            "cannot write " + path("full") + ": No space left on device");
  write_text_file("/dev/null", "x");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(MachineSentence, WhatTheMachineDeniesIsNoMistakeOfOurs) {
  EXPECT_THAT(*machine_sentence(std::bad_alloc()), HasSubstr("not enough memory"));
  try {
    (void)fs::exists(std::string(300, 'a'));
    FAIL() << "that name is no error";
  } catch (const std::exception& error) {
    EXPECT_EQ(*machine_sentence(error),
              "cannot look at " + std::string(300, 'a') + ": File name too long");
  }
  EXPECT_THAT(*machine_sentence(std::system_error(EAGAIN, std::generic_category(), "thread")),
              HasSubstr("Resource temporarily unavailable"));
  EXPECT_FALSE(machine_sentence(std::logic_error("ours")).has_value());
}

TEST(Utf8, WhatRfc3629Says) {
  for (const char* good : {"", "plain", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
                           "\xED\x9F\xBF\xEE\x80\x80", "\xF4\x8F\xBF\xBF"})
    EXPECT_TRUE(is_utf8(good)) << good;
  for (const char* bad : {"caf\xE9", "\x80", "\xC0\xAF", "\xE0\x80\xAF", "\xF0\x80\x80\xAF",
                          "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82", "\xFF",
                          "\xC3"
                          "A"})
    EXPECT_FALSE(is_utf8(bad)) << bad;
}

}  // namespace
}  // namespace tautline
