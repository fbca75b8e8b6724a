// The reader on a log in a bucket: the same batches as from a folder, and no secret in its errors.
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tautline/base/error.h"
#include "tautline/data/read/reader.h"
#include "tautline/data/uri.h"

#include "data/log_writer.h"
#include "data/s3_server.h"

namespace tautline::data {
namespace {

using namespace testing_log;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

void upload(const std::string& folder, const Location& to) {
  ASSERT_TRUE(to.filesystem->CreateDir(to.path, true).ok());
  for (const std::string& name : list_folder(open_filesystem(folder))) {
    std::ifstream in(folder + "/" + name, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    auto out = to.filesystem->OpenOutputStream(to.child(name).path).ValueOrDie();
    ASSERT_TRUE(out->Write(bytes.data(), static_cast<int64_t>(bytes.size())).ok());
    ASSERT_TRUE(out->Close().ok());
  }
}

TEST(ReadS3, ABucketReadsLikeAFolder) {
  const testing_s3::S3Server server;
  const TemporaryFolder folder;
  write_log(random_log(61, 200, 20, 3, 20), folder / "log");
  const std::string uri = server.uri("bucket/log");
  upload(folder / "log", open_filesystem(uri));

  ReaderOptions local, remote;
  local.log = folder / "log";
  local.batch = 50;
  local.workers = 3;
  local.shuffle_window = 40;
  local.cache_bytes = 0;
  remote = local;
  remote.log = uri;
  const auto a = open_reader(local), b = open_reader(remote);
  for (int step = 0; step < 12; ++step) {
    const Batch x = a->next(), y = b->next();
    EXPECT_EQ(x.sample, y.sample);
    EXPECT_EQ(x.item, y.item);
    EXPECT_EQ(x.time, y.time);
    EXPECT_EQ(x.target, y.target);
  }
  const auto e = open_evaluation(local, Split::kTest, 0, 64),
             f = open_evaluation(remote, Split::kTest, 0, 64);
  EvaluationBatch x, y;
  while (e->next(x)) {
    ASSERT_TRUE(f->next(y));
    EXPECT_EQ(x.item, y.item);
    EXPECT_EQ(x.target, y.target);
  }
  EXPECT_FALSE(f->next(y));

  remote.log = server.uri("bucket/none");
  try {
    open_reader(remote);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("there is no log at s3://bucket/none"), Not(HasSubstr("secret"))));
  }
}

}  // namespace
}  // namespace tautline::data
