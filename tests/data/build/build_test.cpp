// What `data build` makes of a log: order, ids, columns, formats, files, statistics.
#include "tautline/data/build/build.h"

#include <cmath>
#include <filesystem>
#include <gmock/gmock.h>

#include "tautline/data/read/reader.h"

#include "data/built.h"

namespace tautline::data {
namespace {

using namespace testing_build;
using testing::ElementsAre;

constexpr const char* kText =
    "user,item,time,kind,price\n"
    "u2,b,30,view,1.5\n"
    "u1,a,20,buy,2\n"
    "u1,c,10,,-3e2\n"
    "u1,b,20,view,4\n"  // ties with a: after it, as in the file
    "\n"
    "\"u,\"\"3\",a,5,view,inf\n"
    "u2,a,30,view,6\n"
    "u1,a,19,view,7";  // no line end

BuildOptions options_for(const TemporaryFolder& folder, const std::string& log) {
  BuildOptions options;
  options.log = log;
  options.out = folder / "out";
  options.categorical = {"kind"};
  options.dense = {"price"};
  options.baselines = false;
  return options;
}

void expect_the_text(const Built& built) {
  EXPECT_EQ(built.rows, 3);
  const History& one = built.users.at("u1");
  EXPECT_THAT(one.item, ElementsAre("c", "a", "a", "b"));
  EXPECT_THAT(one.time, ElementsAre(10, 19, 20, 20));
  EXPECT_THAT(one.categorical.at("kind"), ElementsAre("", "view", "buy", "view"));
  EXPECT_THAT(one.dense.at("price"), ElementsAre(-300, 7, 2, 4));
  EXPECT_THAT(built.users.at("u2").item, ElementsAre("b", "a"));
  EXPECT_THAT(built.users.at("u,\"3").item, ElementsAre("a"));
  EXPECT_EQ(built.users.at("u,\"3").dense.at("price")[0], INFINITY);
  // By descending count; b before c although c is no more seldom than nothing else: b has two.
  EXPECT_THAT(built.vocabulary.at("item"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(built.counts.at("item"), ElementsAre(4, 2, 1));
  EXPECT_THAT(built.vocabulary.at("kind"), ElementsAre("view", "buy"));
}

TEST(Build, TimeOrderTiesQuotesAndTheUnterminatedLastLine) {
  TemporaryFolder folder;
  write_file(folder / "log.csv", kText);
  const LogStatistics statistics = build_log(options_for(folder, folder / "log.csv"));
  expect_the_text(read_built(folder / "out"));
  EXPECT_EQ(statistics.name, "log");
  EXPECT_EQ(statistics.users, 3);
  EXPECT_EQ(statistics.events, 7);
  EXPECT_EQ(statistics.first_time, 5);
  EXPECT_EQ(statistics.last_time, 30);
  EXPECT_EQ(statistics.length.minimum, 1);
  EXPECT_EQ(statistics.length.p50, 2);
  EXPECT_EQ(statistics.length.maximum, 4);
  EXPECT_EQ(statistics.vocabularies.at("item").size, 3);
  EXPECT_DOUBLE_EQ(statistics.vocabularies.at("item").top1_share, 4.0 / 7);
  EXPECT_EQ(read_log_statistics(folder / "out"), statistics);
}

TEST(Build, GzZstTabsAndWindowsLineEndsHoldTheSame) {
  std::string windows, tabs;
  for (const char* c = kText; *c; ++c) {
    windows += *c == '\n' ? "\r\n" : std::string(1, *c);
    tabs += *c == ',' ? '\t' : *c;
  }
  tabs.replace(tabs.find("u\t\"\"3"), 5, "u,\"\"3");
  const std::pair<const char*, arrow::Compression::type> files[] = {
      {"log.csv.gz", arrow::Compression::GZIP},
      {"log.csv.zst", arrow::Compression::ZSTD},
      {"log.tsv", arrow::Compression::UNCOMPRESSED},
      {"log.unknown", arrow::Compression::GZIP},  // both are known by their bytes
      {"windows.csv", arrow::Compression::UNCOMPRESSED}};
  for (const auto& [name, compression] : files) {
    TemporaryFolder folder;
    const bool tab = std::string(name) == "log.tsv" || std::string(name) == "log.unknown";
    write_file(folder / name,
               tab                                  ? tabs
               : std::string(name) == "windows.csv" ? windows
                                                    : kText,
               compression);
    build_log(options_for(folder, folder / name));
    SCOPED_TRACE(name);
    expect_the_text(read_built(folder / "out"));
  }
}

TEST(Build, ColumnsByNumberOtherDelimiterByteOrderMark) {
  TemporaryFolder folder;
  write_file(folder / "log.txt", "7;x;1;\n8;y;2;q\n");
  BuildOptions options = options_for(folder, folder / "log.txt");
  options.delimiter = ';';
  options.header = false;
  options.user = "1", options.item = "2", options.time = "3";
  options.categorical = {"4"};
  options.dense = {};
  build_log(options);
  EXPECT_THAT(read_built(folder / "out").users.at("8").categorical.at("4"), ElementsAre("q"));

  write_file(folder / "mark.csv", "\xef\xbb\xbfuser_id:token,movieId,Timestamp\nu,i,3\n");
  options = options_for(folder, folder / "mark.csv");
  options.categorical = options.dense = {};
  options.overwrite = true;
  build_log(options);
  EXPECT_THAT(read_built(folder / "out").users.at("u").time, ElementsAre(3));
}

TEST(Build, QuotedLineEndsStayInsideTheirField) {
  TemporaryFolder folder;
  write_file(folder / "log.csv", "user,item,time\nu,\"two\nlines\",1\nu,b,2\n");
  BuildOptions options = options_for(folder, folder / "log.csv");
  options.categorical = options.dense = {};
  build_log(options);
  EXPECT_THAT(read_built(folder / "out").users.at("u").item, ElementsAre("two\nlines", "b"));
}

TEST(Build, TheDigestsTellLogsOfEqualCountsApart) {
  const auto built = [](const std::string& text) {
    TemporaryFolder folder;
    write_file(folder / "log.csv", "user,item,time\n" + text);
    BuildOptions options = options_for(folder, folder / "log.csv");
    options.categorical = options.dense = {};
    return build_log(options);
  };
  const LogStatistics first = built("u,a,1\nu,b,2\nv,b,3\n");
  EXPECT_EQ(first.items_digest.size(), 16u);
  const LogStatistics same = built("u,a,1\nu,b,2\nv,b,3\n");
  EXPECT_EQ(same.items_digest, first.items_digest);
  EXPECT_EQ(same.histories_digest, first.histories_digest);
  const LogStatistics other_item = built("u,a,1\nu,c,2\nv,c,3\n");
  EXPECT_NE(other_item.items_digest, first.items_digest);
  EXPECT_EQ(other_item.histories_digest, first.histories_digest);
  for (const char* text :
       {"u,b,1\nu,a,2\nv,b,3\n", "u,a,1\nu,b,3\nv,b,3\n", "u,a,1\nw,b,3\nu,b,2\n"}) {
    const LogStatistics other = built(text);
    EXPECT_EQ(other.items_digest, first.items_digest) << text;
    EXPECT_NE(other.histories_digest, first.histories_digest) << text;
  }
}

TEST(Build, ADigestOfEachFurtherColumnTellsItsValuesApart) {
  const auto built = [](const std::string& rows) {
    TemporaryFolder folder;
    write_file(folder / "log.csv", "user,item,time,kind,price,clicked\n" + rows);
    BuildOptions options = options_for(folder, folder / "log.csv");
    options.labels = {"clicked"};
    const LogStatistics made = build_log(options);
    EXPECT_EQ(read_log_statistics(folder / "out"), made);
    return made;
  };
  const LogStatistics first = built("u,a,1,x,1,0\nu,b,2,y,2,1\nv,b,3,x,3,0\n");
  ASSERT_EQ(first.column_digests.size(), 3u);
  for (const auto& [column, digest] : first.column_digests) EXPECT_EQ(digest.size(), 16u) << column;
  EXPECT_EQ(built("v,b,3,x,3,0\nu,a,1,x,1,0\nu,b,2,y,2,1\n").column_digests.at("clicked"),
            built("v,b,3,y,3,0\nu,a,1,x,1,0\nu,b,2,y,2,1\n").column_digests.at("clicked"));
  const std::pair<const char*, const char*> others[] = {
      {"kind", "u,a,1,y,1,0\nu,b,2,x,2,1\nv,b,3,y,3,0\n"},  // only the names
      {"kind", "u,a,1,x,1,0\nu,b,2,x,2,1\nv,b,3,y,3,0\n"},  // only the values
      {"kind", "u,a,1,x,1,0\nu,b,2,,2,1\nv,b,3,x,3,0\n"},
      {"price", "u,a,1,x,1.5,0\nu,b,2,y,2,1\nv,b,3,x,3,0\n"},
      {"clicked", "u,a,1,x,1,1\nu,b,2,y,2,0\nv,b,3,x,3,0\n"}};
  for (const auto& [column, rows] : others) {
    const LogStatistics other = built(rows);
    EXPECT_EQ(other.items_digest, first.items_digest) << rows;
    EXPECT_EQ(other.histories_digest, first.histories_digest) << rows;
    for (const auto& [name, digest] : other.column_digests)
      EXPECT_EQ(digest != first.column_digests.at(name), name == column) << name << '\n' << rows;
  }
}

TEST(Build, TimeUnitsOrderByTheWholeValueAndKeepSeconds) {
  const std::pair<TimeUnit, const char*> logs[] = {
      {TimeUnit::kSeconds, "u,b,7.25\nu,a,7.125\nu,c,-0.5\n"},
      {TimeUnit::kMilliseconds, "u,b,7250\nu,a,7125\nu,c,-500\n"},
      {TimeUnit::kMicroseconds, "u,b,7000002\nu,a,7000001\nu,c,-1\n"},
      {TimeUnit::kNanoseconds, "u,b,7000000002\nu,a,7000000001\nu,c,-1\n"}};
  for (const auto& [unit, text] : logs) {
    TemporaryFolder folder;
    write_file(folder / "log.csv", std::string("user,item,time\n") + text);
    BuildOptions options = options_for(folder, folder / "log.csv");
    options.categorical = options.dense = {};
    options.time_unit = unit;
    build_log(options);
    const History history = read_built(folder / "out").users.at("u");
    EXPECT_THAT(history.item, ElementsAre("c", "a", "b")) << text;
    EXPECT_THAT(history.time, ElementsAre(-1, 7, 7)) << text;
  }
}

/// Many events in small partitions, against a sort in memory.
class ManyEvents : public testing::Test {
 protected:
  void SetUp() override {
    Random random(3, RandomUse::kSynthetic);
    text_ = "user,item,time,kind,price\n";
    for (int i = 0; i < 20000; ++i) {
      // One user has a third of the events: more than a partition holds.
      const auto user = "user-" + std::to_string(random.below(3) == 0 ? 0 : random.below(500));
      const auto item = std::to_string(random.below(1 + random.below(300)));
      const auto time = static_cast<int64_t>(random.below(5000));
      text_ += user + "," + item + "," + std::to_string(time) + ",k" + std::to_string(i % 3) + "," +
               std::to_string(i) + "\n";
      by_user_[user].emplace_back(time, i, item);
    }
    for (auto& [user, events] : by_user_) std::sort(events.begin(), events.end());
    write_file(folder_ / "log.csv", text_);
  }
  void expect_all(const Built& built) const {
    ASSERT_EQ(built.users.size(), by_user_.size());
    for (const auto& [user, events] : by_user_) {
      const History& history = built.users.at(user);
      ASSERT_EQ(history.item.size(), events.size()) << user;
      for (size_t i = 0; i < events.size(); ++i) {
        const auto& [time, line, item] = events[i];
        ASSERT_EQ(history.time[i], time) << user;
        ASSERT_EQ(history.item[i], item) << user;
        ASSERT_EQ(history.dense.at("price")[i], static_cast<float>(line)) << user;
        ASSERT_EQ(history.categorical.at("kind")[i], "k" + std::to_string(line % 3)) << user;
      }
    }
  }
  TemporaryFolder folder_;
  std::string text_;
  std::map<std::string, std::vector<std::tuple<int64_t, int, std::string>>> by_user_;
};

TEST_F(ManyEvents, AnyPartitionSizeHoldsTheSameHistories) {
  for (const int64_t bytes : {int64_t{1} << 30, int64_t{100'000}, int64_t{3'000}}) {
    BuildOptions options = options_for(folder_, folder_ / "log.csv");
    options.partition_bytes = bytes;
    options.overwrite = true;
    const LogStatistics statistics = build_log(options);
    SCOPED_TRACE(bytes);
    if (bytes < 1 << 20) {
      EXPECT_GT(statistics.shards, 5);
    }
    expect_all(read_built(folder_ / "out"));
    for (const std::string& name : list_folder(open_filesystem(folder_ / "out")))
      EXPECT_EQ(name.rfind(".spill", 0), std::string::npos) << name;
  }
}

TEST_F(ManyEvents, ThreadsDoNotShowInTheFiles) {
  std::map<std::string, std::string> first;
  for (const int threads : {1, 2, 5}) {
    BuildOptions options = options_for(folder_, folder_ / "log.csv");
    options.partition_bytes = 50'000;
    options.threads = threads;
    options.overwrite = true;
    options.baselines = true;
    build_log(options);
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / "out"))
      if (entry.is_regular_file()) {
        std::ifstream in(entry.path(), std::ios::binary);
        files[entry.path().string()] = std::string(std::istreambuf_iterator<char>(in), {});
      }
    if (threads == 1) first = files;
    EXPECT_TRUE(files == first) << threads << " threads";
  }
}

TEST_F(ManyEvents, AFolderOfFilesReadsInOrderOfNames) {
  std::filesystem::create_directories(folder_ / "logs/day=2");
  const std::string header = text_.substr(0, text_.find('\n') + 1);
  const size_t half = text_.find('\n', text_.size() / 2) + 1;
  write_file(folder_ / "logs/day=1.csv", text_.substr(0, half));
  write_file(folder_ / "logs/day=2/part.csv.gz", header + text_.substr(half),
             arrow::Compression::GZIP);
  write_file(folder_ / "logs/_SUCCESS", "");
  write_file(folder_ / "logs/day=3.csv", header);  // a file without events is fine
  build_log(options_for(folder_, folder_ / "logs"));
  expect_all(read_built(folder_ / "out"));
}

}  // namespace
}  // namespace tautline::data
