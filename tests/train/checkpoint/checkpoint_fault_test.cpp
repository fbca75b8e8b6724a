// What can happen to checkpoints: killed processes, full disks, damaged files.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <set>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tautline/base/error.h"
#include "tautline/base/random.h"
#include "tautline/train/checkpoint/checkpoint_reader.h"
#include "tautline/train/checkpoint/checkpoint_writer.h"

#include "train/error_of.h"
#include "train/scratch.h"

namespace tautline::train {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

// A tensor whose every element tells the step.
std::vector<int64_t> values_of(int64_t step, size_t n) { return std::vector<int64_t>(n, step); }

CheckpointTensor tensor_over(const std::vector<int64_t>& values, int rank, int ranks) {
  const auto n = static_cast<int64_t>(values.size());
  return {{"t", DataType::kI64, {n}, values.data()}, RowLayout::dealt(n * ranks, rank, ranks)};
}

void save(Storage& storage, int64_t step, size_t n, int ranks = 2) {
  Manifest manifest;
  manifest.step = step;
  manifest.ranks = ranks;
  const std::vector<int64_t> values = values_of(step, n);
  for (int rank = 0; rank < ranks; ++rank)
    manifest.files.push_back(write_rank_file(storage, {step, rank, ranks},
                                             std::vector{tensor_over(values, rank, ranks)}));
  commit(storage, manifest);
}

void flip_bit(const std::string& path, int64_t bit) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(bit / 8);
  const char byte = static_cast<char>(file.get());
  file.seekp(bit / 8);
  file.put(static_cast<char>(byte ^ (1 << bit % 8)));
}

TEST(CheckpointFault, EveryFileIsRefusedByNameWhenDamaged) {
  Random random(1, RandomUse::kSynthetic);
  const Scratch scratch;
  const auto storage = std::shared_ptr(open_storage(scratch.path()));
  save(*storage, 1, 500);
  save(*storage, 2, 500);
  const std::string folder = scratch.path("step-00000002");
  for (const std::string& name : storage->list("step-00000002")) {
    const std::string path = folder + "/" + name;
    const auto size = static_cast<int64_t>(fs::file_size(path));
    const auto refused = [&](const std::string& what) {
      const std::string error = error_of([&] { open_latest(storage, false); });
      EXPECT_THAT(error, HasSubstr(path)) << what;
      EXPECT_THAT(error, HasSubstr("checkpoint.fallback")) << what;
      const LatestCheckpoint before = open_latest(storage, true);
      ASSERT_NE(before.reader, nullptr) << what;
      EXPECT_EQ(before.reader->manifest().step, 1) << what;
      EXPECT_THAT(before.skipped, ElementsAre(HasSubstr(path))) << what;
    };
    const std::string copy = scratch.path("copy");
    fs::copy_file(path, copy, fs::copy_options::overwrite_existing);
    const auto mend = [&] { fs::copy_file(copy, path, fs::copy_options::overwrite_existing); };
    for (int i = 0; i < 20; ++i) {
      const auto bit = static_cast<int64_t>(random.below(static_cast<uint64_t>(size) * 8));
      flip_bit(path, bit);
      refused(name + " bit " + std::to_string(bit));
      mend();
    }
    for (int64_t kept : {int64_t{0}, int64_t{7}, size / 2, size - 1}) {
      fs::resize_file(path, static_cast<uintmax_t>(kept));
      refused(name + " cut to " + std::to_string(kept));
      mend();
    }
    std::ofstream(path, std::ios::app) << "x";
    refused(name + " with a byte more");
    mend();
    if (name != "manifest.json") {
      fs::remove(path);
      refused(name + " gone");
      mend();
    }
    EXPECT_EQ(open_latest(storage, false).reader->manifest().step, 2);
    fs::remove(copy);
  }
  for (const std::string step : {"step-00000001", "step-00000002"})
    fs::resize_file(scratch.path(step + "/rank-00001-of-00002.safetensors"), 100);
  EXPECT_THAT(error_of([&] { open_latest(storage, true); }), HasSubstr("is whole"));
}

// The error of a save that could not end, in a folder with one good checkpoint.
void expect_unsaved(const std::shared_ptr<Storage>& storage, const std::string& reason) {
  CheckpointWriter writer(storage, {});
  Manifest manifest;
  manifest.step = 2;
  const std::vector<int64_t> values = values_of(2, 1 << 20);  // 8 MiB
  writer.save(manifest, Snapshot::copy_of(std::vector{tensor_over(values, 0, 1)}));
  const std::string error = error_of([&] { writer.wait(); });
  EXPECT_THAT(error, HasSubstr("step 2 was not saved"));
  EXPECT_THAT(error, HasSubstr("step-00000002.tmp/rank-00000-of-00001.safetensors"));
  EXPECT_THAT(error, HasSubstr(" bytes"));
  EXPECT_THAT(error, HasSubstr(reason));
  EXPECT_EQ(writer.committed_step(), -1);
  EXPECT_THAT(storage->list(""), ElementsAre("step-00000001"));
  EXPECT_EQ(open_latest(storage, false).reader->manifest().step, 1);
  // With room again the same writer goes on.
  manifest.step = 3;
  writer.save(manifest, Snapshot::copy_of(std::vector{tensor_over({3}, 0, 1)}));
  writer.wait();
  EXPECT_EQ(open_latest(storage, false).reader->manifest().step, 3);
}

TEST(CheckpointFault, FullDisk) {
  const Scratch scratch;
  const std::string disk = scratch.path("disk");
  fs::create_directory(disk);
  if (mount("none", disk.c_str(), "tmpfs", 0, "size=4m") != 0)
    GTEST_SKIP() << "mounting a small disk needs root";
  const std::unique_ptr<const char, int (*)(const char*)> mounted(disk.c_str(), umount);
  const auto storage = std::shared_ptr(open_storage(disk));
  save(*storage, 1, 1000);
  expect_unsaved(storage, "No space left on device");
}

// The same where no disk can be mounted: a limit on the size of files.
TEST(CheckpointFault, FileLargerThanAllowed) {
  const Scratch scratch;
  const auto storage = std::shared_ptr(open_storage(scratch.path()));
  save(*storage, 1, 1000);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{4 << 20, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  expect_unsaved(storage, "File too large");
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
}

TEST(CheckpointFault, FolderThatCannotBeMade) {
  const Scratch scratch;
  std::ofstream(scratch.path("file")) << "in the way";
  CheckpointWriter writer(open_storage(scratch.path("file")), {});
  writer.save({}, Snapshot::copy_of({}));
  EXPECT_THAT(error_of([&] { writer.wait(); }), HasSubstr(scratch.path("file")));
}

// Saves step after step, for ever, through the writer's thread; never returns.
[[noreturn]] void save_until_killed(const std::string& folder, int64_t from) {
  const auto storage = std::shared_ptr(open_storage(folder));
  remove_leftovers(*storage);
  CheckpointWriter writer(storage, {.rank = 0, .ranks = 1, .keep = 2});
  for (int64_t step = from;; ++step) {
    Manifest manifest;
    manifest.step = step;
    const std::vector<int64_t> values = values_of(step, 40'000);
    writer.save(manifest, Snapshot::copy_of(std::vector{tensor_over(values, 0, 1)}));
  }
}

// kill -9 at random moments: afterwards the latest checkpoint is whole, holds its own step's
// values, and is never older than the latest seen before.
TEST(CheckpointFault, KilledAtRandomMoments) {
  Random random(7, RandomUse::kSynthetic);
  const Scratch scratch;
  const auto storage = std::shared_ptr(open_storage(scratch.path()));
  int64_t last = 0, caught_writing = 0;
  constexpr int kKills = 40;
  for (int kill_number = 0; kill_number < kKills; ++kill_number) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_until_killed(scratch.path(), last + 1);
    std::this_thread::sleep_for(std::chrono::microseconds(3'000 + random.below(60'000)));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    for (const std::string& name : storage->list("")) caught_writing += name.ends_with(".tmp");

    const LatestCheckpoint latest = open_latest(storage, false);
    if (latest.reader == nullptr) {
      ASSERT_EQ(last, 0) << "all checkpoints lost by kill " << kill_number;
      continue;
    }
    const int64_t step = latest.reader->manifest().step;
    ASSERT_GE(step, last);
    std::vector<int64_t> values(40'000);
    latest.reader->read_whole("t", DataType::kI64, values.data(), 320'000);
    ASSERT_EQ(values, values_of(step, 40'000));
    last = step;
  }
  EXPECT_GT(last, 0);
  EXPECT_GT(caught_writing, 0) << "no kill fell into a save: the test shows nothing";
  remove_leftovers(*storage);
  for (const std::string& name : storage->list("")) EXPECT_THAT(name, Not(HasSubstr(".tmp")));
}

// The machine stops: thrown by the n-th thing that a storage is asked to change, after half of a
// write. Nothing catches it, so nothing tidies up.
struct Crash {};

struct CrashClock {
  int64_t left = 0;
  bool strikes() { return left-- == 0; }
};

// Local files grow as they are written; an object of a store is there when it is finished.
class CrashingFile : public OutputFile {
 public:
  using Open = std::function<std::unique_ptr<OutputFile>()>;
  CrashingFile(Open open, bool object, CrashClock& clock)
      : open_(std::move(open)), object_(object), clock_(clock) {
    if (!object_) file_ = open_();
  }
  void write(const void* data, int64_t bytes) override {
    const bool strikes = clock_.strikes();
    if (object_)
      held_.append(static_cast<const char*>(data), static_cast<size_t>(bytes));
    else
      file_->write(data, strikes ? bytes / 2 : bytes);
    if (strikes) throw Crash{};
  }
  void finish() override {
    if (clock_.strikes()) throw Crash{};
    if (object_) {
      file_ = open_();
      file_->write(held_.data(), static_cast<int64_t>(held_.size()));
    }
    file_->finish();
  }

 private:
  Open open_;
  bool object_;
  std::unique_ptr<OutputFile> file_;
  std::string held_;
  CrashClock& clock_;
};

class CrashingStorage : public Storage {
 public:
  CrashingStorage(Storage& storage, int64_t after) : storage_(storage), clock_{after} {}
  bool can_publish() const override { return storage_.can_publish(); }
  void create_folder(const std::string& name) override {
    if (clock_.strikes()) throw Crash{};
    storage_.create_folder(name);
  }
  std::unique_ptr<OutputFile> create(const std::string& name) override {
    if (clock_.strikes()) throw Crash{};
    return std::make_unique<CrashingFile>([this, name] { return storage_.create(name); },
                                          !can_publish(), clock_);
  }
  std::unique_ptr<InputFile> open(const std::string& name) override { return storage_.open(name); }
  bool exists(const std::string& name) override { return storage_.exists(name); }
  std::vector<std::string> list(const std::string& name) override { return storage_.list(name); }
  void remove(const std::string& name) override {
    if (clock_.strikes()) {  // half a folder is gone
      const bool folder = name.find('/') == std::string::npos;
      const auto names = folder ? storage_.list(name) : std::vector<std::string>();
      for (size_t i = 0; i < names.size() / 2; ++i) storage_.remove(name + "/" + names[i]);
      throw Crash{};
    }
    storage_.remove(name);
  }
  void publish(const std::string& from, const std::string& to) override {
    if (clock_.strikes()) throw Crash{};
    storage_.publish(from, to);
  }
  std::string path_of(const std::string& name) const override { return storage_.path_of(name); }

 private:
  Storage& storage_;
  CrashClock clock_;
};

// Saves step 3 over steps 1 and 2 and keeps two, with a crash at each possible point in turn.
// Afterwards there is always a whole latest checkpoint; a new run then saves the same step.
void crash_everywhere(const std::function<std::shared_ptr<Storage>()>& fresh, int64_t saved_step,
                      std::set<int64_t> allowed) {
  std::set<int64_t> seen;
  for (int64_t after = 0;; ++after) {
    const std::shared_ptr<Storage> storage = fresh();
    for (int64_t step : {1, 2}) save(*storage, step, 64);
    CrashingStorage crashing(*storage, after);
    bool crashed = false;
    try {
      save(crashing, saved_step, 64);
      keep_latest(crashing, 1);
    } catch (const Crash&) {
      crashed = true;
    }
    const LatestCheckpoint latest = open_latest(storage, false);  // throws if it is not whole
    ASSERT_NE(latest.reader, nullptr) << "crash " << after;
    const int64_t step = latest.reader->manifest().step;
    ASSERT_TRUE(allowed.contains(step)) << "crash " << after << " left step " << step;
    std::vector<int64_t> values(128);
    latest.reader->read_whole("t", DataType::kI64, values.data(), 1024);
    ASSERT_EQ(values, values_of(step, 128));
    seen.insert(step);

    remove_leftovers(*storage);
    save(*storage, saved_step, 32);
    ASSERT_EQ(open_latest(storage, false).reader->manifest().step, saved_step);
    if (!crashed) {
      EXPECT_GT(after, 10);
      break;
    }
  }
  EXPECT_EQ(seen, allowed);
}

TEST(CheckpointFault, CrashAtEveryPoint) {
  std::vector<std::unique_ptr<Scratch>> folders;
  const auto local = [&]() -> std::shared_ptr<Storage> {
    folders.push_back(std::make_unique<Scratch>("/dev/shm"));  // no waiting for a real fsync
    return open_storage(folders.back()->path());
  };
  const auto bucket = []() -> std::shared_ptr<Storage> { return open_arrow_storage("mock:///"); };
  crash_everywhere(local, 3, {2, 3});
  crash_everywhere(local, 2, {2});  // again the same step: it is always there
  crash_everywhere(bucket, 3, {2, 3});
  crash_everywhere(bucket, 2, {1, 2});
}

// Object stores have no rename: the manifest is the commit point there.
TEST(CheckpointFault, WithoutRenameTheManifestCommits) {
  const auto storage = std::shared_ptr(open_arrow_storage("mock:///"));
  ASSERT_FALSE(storage->can_publish());
  save(*storage, 1, 100);
  save(*storage, 2, 100);
  const std::vector<int64_t> values = values_of(3, 100);
  write_rank_file(*storage, {3, 0, 2}, std::vector{tensor_over(values, 0, 2)});
  EXPECT_THAT(list_checkpoints(*storage), ElementsAre(1, 2));
  EXPECT_EQ(open_latest(storage, false).reader->manifest().step, 2);
  // The same step again: what is half overwritten is no checkpoint.
  write_rank_file(*storage, {2, 0, 2}, std::vector{tensor_over(values, 0, 2)});
  EXPECT_EQ(open_latest(storage, false).reader->manifest().step, 1);
  remove_leftovers(*storage);
  EXPECT_THAT(storage->list(""), ElementsAre("step-00000001"));
  for (int64_t step : {4, 5, 6}) save(*storage, step, 10);
  keep_latest(*storage, 2);
  EXPECT_THAT(storage->list(""), ElementsAre("step-00000005", "step-00000006"));
}

}  // namespace
}  // namespace tautline::train
