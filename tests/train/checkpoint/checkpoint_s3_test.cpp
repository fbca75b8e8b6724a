// Checkpoints in a bucket, on a local S3 server (moto, from the pinned environment).
#include <csignal>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <iostream>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tautline/base/error.h"
#include "tautline/train/checkpoint/checkpoint_reader.h"
#include "tautline/train/checkpoint/checkpoint_writer.h"

#include "train/scratch.h"

extern char** environ;

namespace tautline::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The server in a process of its own, with a bucket; it ends with the object.
class S3Server {
 public:
  S3Server() {
    std::ofstream(scratch_.path("server.py")) << R"(
import os, sys, threading, time
from moto.server import ThreadedMotoServer
import boto3
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1",
             aws_access_key_id="k", aws_secret_access_key="s").create_bucket(Bucket="bucket")
open("port.tmp", "w").write(str(port)); os.rename("port.tmp", "port")
parent = os.getppid()
while os.getppid() == parent: time.sleep(0.2)
)";
    const std::string command = "cd '" + scratch_.path() +
                                "' && exec \"$('" TAUTLINE_SOURCE_DIR
                                "/scripts/environment')/bin/python\" -B server.py >log 2>&1";
    const char* arguments[] = {"sh", "-c", command.c_str(), nullptr};
    if (posix_spawn(&pid_, "/bin/sh", nullptr, nullptr, const_cast<char**>(arguments), environ) !=
        0)
      pid_ = -1;
    for (int i = 0; i < 600 && port_.empty() && pid_ > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      std::ifstream(scratch_.path("port")) >> port_;
      if (waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = -1;
    }
    if (port_.empty()) std::cerr << std::ifstream(scratch_.path("log")).rdbuf();
  }
  ~S3Server() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  S3Server(const S3Server&) = delete;
  S3Server& operator=(const S3Server&) = delete;
  bool up() const { return !port_.empty(); }
  std::string uri(const std::string& path) const {
    return "s3://k:s@bucket/" + path +
           "?scheme=http&region=us-east-1&endpoint_override=127.0.0.1:" + port_;
  }

 private:
  Scratch scratch_;
  pid_t pid_ = -1;
  std::string port_;
};

TEST(CheckpointS3, SavedResumedPrunedAndDamaged) {
  const S3Server server;
  ASSERT_TRUE(server.up());
  const auto storage = std::shared_ptr(open_storage(server.uri("runs/a/checkpoints")));
  EXPECT_TRUE(list_checkpoints(*storage).empty());
  CheckpointWriter writer(storage, {.rank = 0, .ranks = 1, .keep = 2});
  std::vector<float> values(300'000);  // 1.2 MB: a part
  for (int64_t step : {1, 2, 3}) {
    std::fill(values.begin(), values.end(), static_cast<float>(step));
    const std::vector<CheckpointTensor> tensors = {
        {{"t", DataType::kF32, {1000, 300}, values.data()}, RowLayout::dealt(1000, 0, 1)}};
    Manifest manifest;
    manifest.step = step;
    writer.save(manifest, Snapshot::copy_of(tensors));
  }
  writer.wait();
  EXPECT_THAT(list_checkpoints(*storage), ElementsAre(2, 3));
  const LatestCheckpoint latest = open_latest(storage, false);
  std::vector<float> half(150'000);
  latest.reader->read_rows("t", DataType::kF32, {1, 2}, half.data(), 600'000);
  EXPECT_EQ(half, std::vector<float>(150'000, 3));

  // A file of another size in its place; then without its manifest.
  const std::string name = "step-00000003/rank-00000-of-00001.safetensors";
  const auto file = storage->create(name);
  file->write("short", 5);
  file->finish();
  try {
    open_latest(storage, false);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("s3://bucket/runs/a/checkpoints/" + name));
    EXPECT_THAT(error.what(), Not(HasSubstr("k:s@")));  // no secret in a message
  }
  EXPECT_EQ(open_latest(storage, true).reader->manifest().step, 2);
  storage->remove("step-00000003/manifest.json");
  remove_leftovers(*storage);
  EXPECT_THAT(storage->list(""), ElementsAre("step-00000002"));
}

}  // namespace
}  // namespace tautline::train
