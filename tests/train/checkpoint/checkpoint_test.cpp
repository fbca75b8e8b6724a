#include "tautline/train/checkpoint/checkpoint.h"

#include <barrier>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>

#include "tautline/base/error.h"
#include "tautline/train/checkpoint/checkpoint_reader.h"
#include "tautline/train/checkpoint/checkpoint_writer.h"

#include "train/error_of.h"
#include "train/scratch.h"

namespace tautline::train {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

// A model's state on W ranks: a row-wise table, a table on one rank, dense parameters, a scalar.
// Every value says where it is from, so that a row in the wrong place shows.
struct Toy {
  int64_t rows = 23, width = 3;
  std::vector<float> table, owned, dense;
  int64_t count = 41;
  std::vector<CheckpointTensor> tensors;

  Toy(int rank, int ranks, float salt, int owner = 0) {
    const RowLayout dealt = RowLayout::dealt(rows, rank, ranks);
    for (int64_t l = 0; l < dealt.local_rows(); ++l)
      for (int64_t c = 0; c < width; ++c)
        table.push_back(salt + static_cast<float>((l * ranks + rank) * width + c));
    const RowLayout whole = RowLayout::dealt(rank == owner ? 5 : 0, 0, 1);
    owned = {salt, salt + 1, salt + 2, salt + 3, salt + 4};
    dense = {salt * 2, salt * 3};
    tensors = {{{"table.item", DataType::kF32, {dealt.local_rows(), width}, table.data()}, dealt}};
    if (rank == owner)
      tensors.push_back({{"table.genre", DataType::kF32, {5}, owned.data()}, whole});
    if (rank == 0) {
      tensors.push_back({{"dense", DataType::kF32, {2}, dense.data()}, RowLayout::whole()});
      tensors.push_back({{"adam.step", DataType::kI64, {}, &count}, RowLayout::whole()});
    }
  }
};

Manifest manifest_of(int64_t step) {
  Manifest manifest;
  manifest.step = step;
  manifest.epoch = 2;
  manifest.cursor = {2, 7, step};
  manifest.seed = 0xffffffffffffffffu;
  manifest.plan = "cluster: \"one\"\ndevices: 4\n";
  manifest.model_digest = "abc";
  manifest.metrics = {"ndcg@10", 0.1 + 0.2, step - 1, 3};
  manifest.extra = {{"note", "ünïcode \"quoted\""}};
  return manifest;
}

// Saves step `step` as W ranks would, one after the other.
void save(Storage& storage, int64_t step, int ranks, float salt) {
  Manifest manifest = manifest_of(step);
  manifest.ranks = ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    const Toy toy(rank, ranks, salt, ranks - 1);
    manifest.files.push_back(write_rank_file(storage, {step, rank, ranks}, toy.tensors));
  }
  commit(storage, manifest);
}

TEST(Checkpoint, ManifestComesBackAsItWas) {
  Manifest manifest = manifest_of(500);
  manifest.files = {{"rank-00000-of-00001.safetensors",
                     123,
                     std::string(32, 'a'),
                     {{"w", DataType::kBf16, {3, 4}, RowLayout::dealt(9, 1, 3)},
                      {"s", DataType::kI64, {}, RowLayout::whole()}}}};
  EXPECT_EQ(manifest_from_text(to_text(manifest), "here"), manifest);
  manifest.metrics.best.reset();
  EXPECT_EQ(manifest_from_text(to_text(manifest), "here"), manifest);
}

TEST(Checkpoint, EveryFlippedBitOfAManifestIsSeen) {
  const std::string text = to_text(manifest_of(1));
  for (size_t byte = 0; byte < text.size(); ++byte)
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = text;
      flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << bit));
      ASSERT_THAT(error_of([&] { manifest_from_text(flipped, "run/manifest.json"); }),
                  HasSubstr("run/manifest.json"))
          << "bit " << bit << " of byte " << byte;
    }
}

// Saved by W ranks, read by V ranks and as a whole: every row is the right one.
TEST(Checkpoint, RowsReadOnAnotherNumberOfRanks) {
  for (int saved : {1, 2, 3, 4, 5, 30}) {  // 30 > 23 rows: some ranks have none
    const Scratch scratch;
    const auto storage = std::shared_ptr(open_storage(scratch.path("ck")));
    save(*storage, 500, saved, 1000);
    CheckpointReader reader(storage, "step-00000500");
    reader.verify();
    EXPECT_EQ(reader.manifest().ranks, saved);
    EXPECT_EQ(reader.shape_of("table.item"), (std::vector<int64_t>{23, 3}));
    for (int now : {1, 2, 3, 4, 7, 40})
      for (int rank = 0; rank < now; ++rank) {
        const Toy want(rank, now, 1000);
        std::vector<float> got(want.table.size(), -1);
        reader.read_rows("table.item", DataType::kF32, {rank, now}, got.data(),
                         static_cast<int64_t>(got.size() * sizeof(float)));
        ASSERT_EQ(got, want.table) << saved << " ranks saved, rank " << rank << " of " << now;
      }
    float genre[5], dense[2], dense_of_rank_1[1];
    reader.read_whole("table.genre", DataType::kF32, genre, sizeof genre);
    EXPECT_THAT(genre, ElementsAre(1000, 1001, 1002, 1003, 1004));
    reader.read_whole("dense", DataType::kF32, dense, sizeof dense);
    EXPECT_THAT(dense, ElementsAre(2000, 3000));
    // A replicated table under a Plan that deals its rows.
    reader.read_rows("dense", DataType::kF32, {1, 2}, dense_of_rank_1, sizeof dense_of_rank_1);
    EXPECT_EQ(dense_of_rank_1[0], 3000);
    int64_t count = 0;
    reader.read_whole("adam.step", DataType::kI64, &count, sizeof count);
    EXPECT_EQ(count, 41);
  }
}

// Rows so wide and so many that they are read in several pieces.
TEST(Checkpoint, RowsPickedFromALargeFile) {
  const Scratch scratch;
  const auto storage = std::shared_ptr(open_storage(scratch.path()));
  const int64_t rows = 9001, width = 300;  // 10.8 MB, pieces of 4 MiB
  std::vector<int32_t> table(static_cast<size_t>(rows * width));
  std::iota(table.begin(), table.end(), 0);
  const std::vector<CheckpointTensor> tensors = {
      {{"t", DataType::kI32, {rows, width}, table.data()}, RowLayout::dealt(rows, 0, 1)}};
  Manifest manifest = manifest_of(1);
  manifest.files = {write_rank_file(*storage, {1, 0, 1}, tensors)};
  commit(*storage, manifest);
  CheckpointReader reader(storage, "step-00000001");
  for (int64_t stride : {1, 2, 7, 4500, 9001}) {
    const RowLayout part = RowLayout::dealt(rows, stride / 2, stride);
    std::vector<int32_t> got(static_cast<size_t>(part.local_rows() * width));
    reader.read_rows("t", DataType::kI32, {part.offset, stride}, got.data(),
                     static_cast<int64_t>(got.size() * 4));
    for (int64_t l = 0; l < part.local_rows(); ++l)
      for (int64_t c : {int64_t{0}, width - 1})
        ASSERT_EQ(got[static_cast<size_t>(l * width + c)], (part.offset + l * stride) * width + c);
  }
}

TEST(Checkpoint, ErrorsNameTheTensor) {
  const Scratch scratch;
  const auto storage = std::shared_ptr(open_storage(scratch.path()));
  save(*storage, 1, 2, 0);
  CheckpointReader reader(storage, "step-00000001");
  float out[69];
  EXPECT_THAT(error_of([&] { reader.read_whole("nope", DataType::kF32, out, 4); }),
              HasSubstr("no tensor 'nope'"));
  EXPECT_THAT(error_of([&] { reader.read_whole("dense", DataType::kI64, out, 16); }),
              HasSubstr("tensor 'dense' of checkpoint"));
  EXPECT_THAT(error_of([&] { reader.read_whole("table.item", DataType::kF32, out, 4); }),
              HasSubstr("23 rows of 12 bytes"));
}

// A run would take it for a later one than it is, and its own later saves for older.
TEST(Checkpoint, AnotherStepsNameIsRefused) {
  const Scratch scratch;
  const auto storage = std::shared_ptr(open_storage(scratch.path()));
  save(*storage, 1, 2, 0);
  fs::rename(scratch.path("step-00000001"), scratch.path("step-00000900"));
  const std::string error = error_of([&] { open_latest(storage, false); });
  EXPECT_THAT(error, HasSubstr("step-00000900 holds the checkpoint of step 1"));
  EXPECT_THAT(error, HasSubstr("its name should be step-00000001"));
}

TEST(Checkpoint, RowsMissingOrDoubledAreNotCommitted) {
  const Scratch scratch;
  const auto storage = open_storage(scratch.path());
  const std::vector<float> values(30);
  const auto attempt = [&](std::vector<RowLayout> layouts) {
    Manifest manifest = manifest_of(1);
    for (size_t r = 0; r < layouts.size(); ++r) {
      const std::vector<CheckpointTensor> tensors = {
          {{"t", DataType::kF32, {layouts[r].local_rows()}, values.data()}, layouts[r]}};
      manifest.files.push_back(write_rank_file(
          *storage, {1, static_cast<int>(r), static_cast<int>(layouts.size())}, tensors));
    }
    return error_of([&] { commit(*storage, manifest); });
  };
  const auto dealt = RowLayout::dealt;
  EXPECT_THAT(attempt({dealt(10, 0, 2)}), HasSubstr("5 rows of tensor 't', it has 10"));
  EXPECT_THAT(attempt({dealt(10, 0, 2), dealt(10, 0, 2)}), HasSubstr("twice"));
  EXPECT_THAT(attempt({dealt(12, 0, 2), dealt(12, 1, 4), dealt(12, 0, 4)}), HasSubstr("twice"));
  EXPECT_EQ(list_checkpoints(*storage).size(), 0u);
  EXPECT_EQ(attempt({dealt(11, 0, 2), dealt(11, 1, 4), dealt(11, 3, 4)}), "");
  EXPECT_EQ(list_checkpoints(*storage).size(), 1u);
}

TEST(Checkpoint, TheLatestStayAndStrangersGo) {
  const Scratch scratch;
  const auto storage = open_storage(scratch.path());
  for (int64_t step : {100, 200, 300, 400, 1000}) save(*storage, step, 1, 0);
  fs::create_directory(scratch.path("step-of-mine"));
  keep_latest(*storage, 2, {200});
  EXPECT_THAT(list_checkpoints(*storage), ElementsAre(200, 400, 1000));
  EXPECT_TRUE(fs::exists(scratch.path("step-of-mine")));

  // A save that was left unfinished, by three ranks; then the same step by two.
  write_rank_file(*storage, {1100, 2, 3}, Toy(2, 3, 0).tensors);
  save(*storage, 1100, 2, 0);
  EXPECT_EQ(storage->list("step-00001100").size(), 3u);  // two ranks' files and the manifest
  write_rank_file(*storage, {1200, 2, 3}, Toy(2, 3, 0).tensors);
  remove_leftovers(*storage);
  EXPECT_EQ(storage->list("").back(), "step-of-mine");
  EXPECT_THAT(list_checkpoints(*storage), ElementsAre(200, 400, 1000, 1100));
}

TEST(Checkpoint, TheSameStepAgainReplacesTheOldOne) {
  const Scratch scratch;
  const auto storage = std::shared_ptr(open_storage(scratch.path()));
  save(*storage, 7, 3, 1);
  save(*storage, 7, 2, 50);
  EXPECT_THAT(storage->list(""), ElementsAre("step-00000007"));
  float dense[2];
  open_latest(storage, false).reader->read_whole("dense", DataType::kF32, dense, sizeof dense);
  EXPECT_EQ(dense[0], 100);
}

// Exchange among threads, as the trainer's over a key-value store.
class ThreadExchange {
 public:
  explicit ThreadExchange(int ranks) : texts_(static_cast<size_t>(ranks)), barrier_(ranks) {}
  Exchange of(int rank) {
    return [this, rank](const std::string& mine) {
      texts_[static_cast<size_t>(rank)] = mine;
      barrier_.arrive_and_wait();
      std::vector<std::string> all = texts_;
      barrier_.arrive_and_wait();
      return all;
    };
  }

 private:
  std::vector<std::string> texts_;
  std::barrier<> barrier_;
};

TEST(Checkpoint, ThreeRanksSaveTogetherInTheBackground) {
  const Scratch scratch;
  const auto storage = std::shared_ptr(open_storage(scratch.path()));
  constexpr int kRanks = 3;
  ThreadExchange exchange(kRanks), exchange_of_load(kRanks);
  const auto work = [&](int rank) {
    CheckpointWriter writer(storage, {rank, kRanks, 2}, exchange.of(rank));
    for (int64_t step : {10, 20, 30, 40}) {
      Toy toy(rank, kRanks, static_cast<float>(step));
      writer.save(manifest_of(step), Snapshot::copy_of(toy.tensors));
      std::fill(toy.table.begin(), toy.table.end(), -1.0f);  // training goes on
    }
    writer.wait();
    EXPECT_EQ(writer.committed_step(), 40);
    EXPECT_GT(writer.last_bytes(), 0);
    const LatestCheckpoint latest =
        open_latest(storage, false, rank, kRanks, exchange_of_load.of(rank));
    const Toy want(rank, kRanks, 40);
    std::vector<float> got(want.table.size());
    latest.reader->read_rows("table.item", DataType::kF32, {rank, kRanks}, got.data(),
                             static_cast<int64_t>(got.size() * 4));
    EXPECT_EQ(got, want.table);
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back(work, rank);
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(list_checkpoints(*storage), ElementsAre(30, 40));
}

TEST(Checkpoint, NoneIsNoError) {
  const Scratch scratch;
  EXPECT_EQ(open_latest(open_storage(scratch.path("nothing")), false).reader, nullptr);
}

}  // namespace
}  // namespace tautline::train
