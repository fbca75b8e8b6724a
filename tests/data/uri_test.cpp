#include "tautline/data/uri.h"

#include <filesystem>
#include <fstream>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tautline/base/error.h"

namespace tautline::data {
namespace {

class UriTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tautline_uri_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_ / "a");
    std::ofstream(folder_ / "b.txt") << "x";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(UriTest, PathAndFileUriNameTheSamePlace) {
  const Location plain = open_filesystem(folder_.string() + "/");
  const Location uri = open_filesystem("file://" + folder_.string());
  EXPECT_EQ(plain.path, uri.path);
  EXPECT_TRUE(plain.local && uri.local);
  EXPECT_EQ(list_folder(plain), (std::vector<std::string>{"a", "b.txt"}));
  EXPECT_EQ(list_folder(uri), list_folder(plain));
  EXPECT_EQ(file_type(plain.child("b.txt")), arrow::fs::FileType::File);
  EXPECT_EQ(file_type(uri.child("a")), arrow::fs::FileType::Directory);
  EXPECT_EQ(file_type(uri.child("none")), arrow::fs::FileType::NotFound);
  EXPECT_TRUE(list_folder(uri.child("none")).empty());
}

TEST_F(UriTest, RelativePathsCountFromTheCurrentFolder) {
  EXPECT_EQ(open_filesystem("x/../y").path, (std::filesystem::current_path() / "y").string());
}

TEST_F(UriTest, UnknownSchemeIsTheUsersError) {
  EXPECT_THROW(open_filesystem("gopher://host/x"), UserError);
  EXPECT_THROW(open_filesystem(""), UserError);
}

TEST_F(UriTest, SecretsStayOutOfMessages) {
  const Location s3 = open_filesystem(
      "s3://key:hush@bucket/logs/?region=x&scheme=http&endpoint_override=localhost:1");
  EXPECT_EQ(s3.text, "s3://bucket/logs");
  EXPECT_EQ(s3.path, "bucket/logs");
  EXPECT_EQ(s3.child("f").text, "s3://bucket/logs/f");
  EXPECT_FALSE(s3.local);
}

}  // namespace
}  // namespace tautline::data
