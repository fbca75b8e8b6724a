// A bucket works like a folder: logs read from it, built logs written to it, errors named.
#include <gmock/gmock.h>

#include "tautline/data/read/reader.h"
#include "tautline/data/synth.h"

#include "data/built.h"
#include "data/s3_server.h"

namespace tautline::data {
namespace {

using namespace testing_build;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class S3 : public testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = new testing_s3::S3Server(); }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }
  /// Makes the bucket.
  void SetUp() override {
    const Location bucket = open_filesystem(server_->uri("bucket"));
    ASSERT_TRUE(bucket.filesystem->CreateDir("bucket").ok());
  }
  static testing_s3::S3Server* server_;
};
testing_s3::S3Server* S3::server_ = nullptr;

TEST_F(S3, BuildsFromAndToABucket) {
  TemporaryFolder folder;
  SynthOptions synth;
  synth.users = 300;
  synth.out = folder / "log.csv.gz";
  write_synthetic_log(synth);
  synth.out = server_->uri("bucket/logs/log.csv.gz");
  write_synthetic_log(synth);

  BuildOptions local, remote;
  local.log = folder / "log.csv.gz";
  local.out = folder / "out";
  local.partition_bytes = remote.partition_bytes = 50'000;  // several shards
  remote.log = server_->uri("bucket/logs");
  remote.out = server_->uri("bucket/built/log");
  remote.name = "log";
  EXPECT_EQ(build_log(remote), build_log(local));
  EXPECT_TRUE(read_built(remote.out).users == read_built(local.out).users);
  EXPECT_EQ(read_log_statistics(remote.out), read_log_statistics(local.out));

  EXPECT_THAT(build_error(remote),
              AllOf(HasSubstr("s3://bucket/built/log is not empty"), Not(HasSubstr("secret"))));
  remote.overwrite = true;
  EXPECT_EQ(build_error(remote), "");
}

TEST_F(S3, AFileOfSeveralPartsIsWhole) {
  // Arrow's parts are 10 MiB: this is written and read in four.
  std::string text(33 << 20, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761u >> 24);
  const Location file = open_filesystem(server_->uri("bucket/large"));
  auto sink = file.filesystem->OpenOutputStream(file.path).ValueOrDie();
  ASSERT_TRUE(sink->Write(text).ok());
  ASSERT_TRUE(sink->Close().ok());
  auto input = file.filesystem->OpenInputFile(file.path).ValueOrDie();
  ASSERT_EQ(input->GetSize().ValueOrDie(), static_cast<int64_t>(text.size()));
  EXPECT_TRUE(input->ReadAt(0, 34 << 20).ValueOrDie()->ToString() == text);
}

TEST_F(S3, WhatIsNotThereIsTheUsersError) {
  TemporaryFolder folder;
  BuildOptions options;
  options.out = folder / "out";
  for (const char* path : {"bucket/none.csv", "no-such-bucket/log.csv"}) {
    options.log = server_->uri(path);
    EXPECT_THAT(build_error(options), AllOf(HasSubstr(path), Not(HasSubstr("secret")))) << path;
  }
}

}  // namespace
}  // namespace tautline::data
