// Which files a log is: links, pipes and what no file is.
#include "tautline/data/build/log_files.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tautline/base/error.h"

#include "data/log_writer.h"

namespace tautline::data {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class LogFiles : public testing::Test {
 protected:
  LogFiles() {
    fs::create_directories(folder_ / "logs/b");
    for (const char* name : {"logs/a.csv", "logs/b/c.csv"}) std::ofstream(folder_ / name) << "x";
  }
  std::vector<std::string> files_of(const std::string& log) {
    std::vector<std::string> names;
    for (const Location& file : log_files(open_filesystem(log)))
      names.push_back(file.path.substr((folder_ / "").size()));
    return names;
  }
  std::string error_of(const std::string& log) {
    try {
      files_of(log);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  testing_log::TemporaryFolder folder_;
};

TEST_F(LogFiles, LinksAreWhatTheyLeadTo) {
  fs::create_directories(folder_ / "elsewhere");
  std::ofstream(folder_ / "elsewhere/d.csv") << "x";
  fs::create_symlink("../elsewhere", folder_ / "logs/e");
  fs::create_symlink("a.csv", folder_ / "logs/f.csv");
  fs::create_symlink("nowhere", folder_ / "logs/.#a.csv");  // as an editor leaves it
  fs::create_symlink("nowhere", folder_ / "logs/_last");
  EXPECT_THAT(files_of(folder_ / "logs"),
              ElementsAre("logs/a.csv", "logs/b/c.csv", "logs/e/d.csv", "logs/f.csv"));
  fs::create_symlink("logs", folder_ / "link");
  EXPECT_EQ(files_of(folder_ / "link").size(), 4u);
}

TEST_F(LogFiles, ALinkToNowhereIsAnError) {
  fs::create_symlink("gone.csv", folder_ / "logs/b/day.csv");
  const auto says = AllOf(HasSubstr("logs/b/day.csv is a link to gone.csv, which is not there"));
  EXPECT_THAT(error_of(folder_ / "logs"), says);
  EXPECT_THAT(error_of(folder_ / "logs/b/day.csv"), says);
}

TEST_F(LogFiles, LinksThatGoRoundAreAnError) {
  fs::create_symlink("y", folder_ / "logs/x");
  fs::create_symlink("x", folder_ / "logs/y");
  EXPECT_THAT(error_of(folder_ / "logs"), HasSubstr("is a link that leads round in a circle"));
  EXPECT_THAT(error_of(folder_ / "logs/x"),
              HasSubstr("logs/x is a link that leads round in a circle"));
  fs::remove(folder_ / "logs/x");
  fs::remove(folder_ / "logs/y");
  fs::create_symlink("..", folder_ / "logs/b/up");
  EXPECT_THAT(error_of(folder_ / "logs"),
              HasSubstr("logs/b/up is a link back to a folder that it lies in"));
}

TEST_F(LogFiles, WhatIsNoFileIsAnError) {
  const std::string pipe = folder_ / "logs/p";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const auto says = AllOf(HasSubstr("logs/p is a pipe, which cannot be read more than once"));
  EXPECT_THAT(error_of(folder_ / "logs"), says);
  EXPECT_THAT(error_of(pipe), says);
  fs::remove(pipe);

  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  snprintf(address.sun_path, sizeof address.sun_path, "%s", pipe.c_str());
  const int listening = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(listening, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_THAT(error_of(folder_ / "logs"), HasSubstr("logs/p is a socket"));
  close(listening);
  EXPECT_THAT(error_of("/dev/null"), HasSubstr("/dev/null is a device"));
}

TEST_F(LogFiles, PathsThatNoFileSystemTakes) {
  EXPECT_THAT(error_of(folder_ / "nothing"), HasSubstr("there is no log at "));
  EXPECT_THAT(error_of(folder_ / "logs/a.csv/x"), HasSubstr("there is no log at "));
  for (const std::string& path : {std::string(300, 'n'), std::string(5000, 'n'),
                                  "/" + std::string(3000, '/') + std::string(3000, 'm')}) {
    const std::string error = error_of(path);
    EXPECT_THAT(error, AllOf(HasSubstr("cannot look at "), HasSubstr("File name too long")));
    EXPECT_LT(error.size(), 1200u);
  }
}

}  // namespace
}  // namespace tautline::data
