// The reader on logs that `data build` wrote: nothing is lost between an event file and the
// batches.
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>

#include "tautline/base/error.h"
#include "tautline/data/build/build.h"
#include "tautline/data/read/reader.h"

#include "data/log_writer.h"

namespace tautline::data {
namespace {

using testing_log::TemporaryFolder;

/// Events trained on as inputs, and targets, in one epoch over all ranks.
struct Totals {
  int64_t targets = 0, tokens = 0, samples = 0;
  std::set<int64_t> users;
};

Totals read_epoch(ReaderOptions options, int world) {
  Totals totals;
  options.world = world;
  for (options.rank = 0; options.rank < world; ++options.rank) {
    const auto reader = open_reader(options);
    for (int64_t k = reader->steps_per_epoch(0); k > 0; --k) {
      const Batch batch = reader->next();
      totals.tokens += batch.tokens();
      totals.samples += batch.samples();
      for (const int64_t id : batch.target) totals.targets += id != 0;
      totals.users.insert(batch.user.begin(), batch.user.end());
    }
  }
  return totals;
}

TEST(ReadBuilt, EveryEventOfACsvComesBack) {
  const TemporaryFolder folder;
  Random random(31, RandomUse::kSynthetic);
  std::map<int64_t, int64_t> events;  // by user
  {
    std::ofstream csv(folder / "log.csv");
    csv << "user,item,time,shop,price,click\n";
    for (int64_t e = 0; e < 3000; ++e) {
      const int64_t user = static_cast<int64_t>(random.below(90));
      ++events[user];
      csv << "u" << user << ",i" << random.below(50) << "," << 1000 + random.below(5000) << ",s"
          << random.below(4) << "," << random.below(9) << ".5," << random.below(2) << "\n";
    }
    csv << "lonely,i1,7,s1,1,0\n";  // one event, and no newline is needed after it
  }
  BuildOptions build;
  build.log = folder / "log.csv";
  build.out = folder / "built";
  build.categorical = {"shop"};
  build.dense = {"price"};
  build.labels = {"click"};
  build.baselines = false;
  const LogStatistics statistics = build_log(build);
  EXPECT_EQ(read_log_statistics(build.out), statistics);

  ReaderOptions options;
  options.log = build.out;
  options.categorical = {"shop"};
  options.dense = {"price"};
  options.labels = {"click"};
  options.max_length = 10;
  options.batch = 32;
  for (const Holdout holdout : {Holdout::kNone, Holdout::kLeaveLastOut}) {
    options.holdout = holdout;
    int64_t targets = 0, users = 0, evaluated = 0;
    for (const auto& [user, count] : events) {
      const int64_t training = training_length(count, holdout);
      targets += std::max<int64_t>(training - 1, 0);
      users += training >= 2;
      evaluated += count >= 3;
    }
    for (const int world : {1, 3}) {
      for (const char* scheme : {"", "file://"}) {
        options.log = scheme + build.out;
        const Totals totals = read_epoch(options, world);
        EXPECT_EQ(totals.targets, targets);
        EXPECT_EQ(static_cast<int64_t>(totals.users.size()), users);
      }
    }
    if (holdout == Holdout::kNone) continue;
    const auto reader = open_evaluation(options, Split::kTest, 0, 16);
    EvaluationBatch batch;
    int64_t read = 0;
    while (reader->next(batch)) read += batch.samples();
    EXPECT_EQ(read, evaluated);
  }
}

/// Where the bytes of a column of the first row group end in a part.
int64_t end_of_column(const std::string& part, const std::string& path) {
  const auto metadata = parquet::ParquetFileReader::OpenFile(part)->metadata();
  for (int leaf = 0; leaf < metadata->num_columns(); ++leaf) {
    if (metadata->schema()->Column(leaf)->path()->ToDotString() != path) continue;
    const auto chunk = metadata->RowGroup(0)->ColumnChunk(leaf);
    return chunk->data_page_offset() + chunk->total_compressed_size();
  }
  ADD_FAILURE() << path << " is no column of " << part;
  return 0;
}

TEST(ReadBuilt, AFlippedBitInAPageIsAnErrorThatNamesThePart) {
  const TemporaryFolder folder;
  {
    std::ofstream csv(folder / "log.csv");
    csv << "user,item,time\n";
    Random random(33, RandomUse::kSynthetic);
    for (int e = 0; e < 4000; ++e)
      csv << "u" << random.below(50) << ",i" << random.below(900) << "," << e << "\n";
  }
  BuildOptions build;
  build.log = folder / "log.csv";
  build.out = folder / "built";
  build.baselines = false;
  build_log(build);
  const std::string part = folder / "built/part-00000.parquet";
  ReaderOptions options;
  options.log = build.out;
  options.batch = 8;
  open_reader(options)->next();
  for (const char* column : {"item.list.element", "time.list.element"}) {
    const int64_t end = end_of_column(part, column);
    for (int64_t at = end - 1; at > end - 100; at -= 7) {  // the last page is longer than this
      const auto flip = [&] {
        std::fstream file(part, std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(at);
        const char byte = static_cast<char>(file.get() ^ (1 << (at % 8)));
        file.seekp(at);
        file.put(byte);
      };
      flip();
      try {
        open_reader(options)->next();
        ADD_FAILURE() << column << ", byte " << at;
      } catch (const UserError& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("part-00000.parquet"));
      }
      flip();
    }
  }
  open_reader(options)->next();  // and whole again
}

// The real log of docs/quality.md: 611 users of which one has a single event, 100,837 events.
TEST(ReadBuilt, MovieLens) {
  const std::string log =
      TAUTLINE_SOURCE_DIR "/../shared/data/movielens_latest_small/ratings.csv.gz";
  if (!std::filesystem::exists(log)) GTEST_SKIP() << "no " << log;
  const TemporaryFolder folder;
  BuildOptions build;
  build.log = log;
  build.out = folder / "built";
  build.baselines = false;
  build.item = "movieId";
  const LogStatistics statistics = build_log(build);
  EXPECT_EQ(statistics.users, 611);
  EXPECT_EQ(statistics.events, 100'837);

  ReaderOptions options;
  options.log = build.out;
  const Totals totals = read_epoch(options, 2);
  EXPECT_EQ(totals.targets, 100'837 - 2 * 610 - 611);  // all but the held out and the first
  EXPECT_EQ(totals.users.size(), 610u);
  const auto reader = open_evaluation(options, Split::kValidation, 0, 100);
  EvaluationBatch batch;
  int64_t users = 0, calls = 0;
  for (; reader->next(batch); ++calls) users += batch.samples();
  EXPECT_EQ(users, 610);
  EXPECT_EQ(calls, 7);
}

}  // namespace
}  // namespace tautline::data
