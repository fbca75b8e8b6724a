// The reader's promises: a step is the same on any number of ranks, threads and in any memory; its
// tokens are the log's; it resumes exactly. Each batch is checked against the log in memory.
#include "tautline/data/read/reader.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <set>

#include <gtest/gtest.h>

#include "tautline/base/error.h"

#include "data/log_writer.h"

namespace tautline::data {
namespace {

using namespace testing_log;
using testing::ElementsAre;
using testing::HasSubstr;

ReaderOptions options_for(const Log& log, const std::string& folder) {
  ReaderOptions options;
  options.log = folder;
  options.categorical = log.categorical;
  options.dense = log.dense;
  options.labels = log.labels;
  return options;
}

/// Every token of the batch is the log's event, and every target the next one.
void expect_events_of(const Log& log, const Batch& batch) {
  ASSERT_EQ(batch.offsets.size(), batch.sample.size() + 1);
  ASSERT_EQ(batch.offsets.back(), batch.tokens());
  ASSERT_EQ(batch.time.size(), batch.item.size());
  ASSERT_EQ(batch.target.size(), batch.item.size());
  for (int64_t s = 0; s < batch.samples(); ++s) {
    const User& user = log.users[batch.user[s]];
    const int64_t first = batch.offsets[s], length = batch.offsets[s + 1] - first;
    ASSERT_GE(length, 1);
    // Events are almost unique by (item, time): find where this sample begins.
    int64_t begin = -1;
    for (int64_t b = 0; b + length < static_cast<int64_t>(user.item.size()) && begin < 0; ++b)
      if (std::equal(batch.item.begin() + first, batch.item.begin() + first + length,
                     user.item.begin() + b) &&
          std::equal(batch.time.begin() + first, batch.time.begin() + first + length,
                     user.time.begin() + b))
        begin = b;
    ASSERT_GE(begin, 0) << "no such run of events of user " << batch.user[s];
    bool targets = false;
    for (int64_t j = 0; j < length; ++j) {
      const int64_t token = first + j, event = begin + j;
      for (const auto& name : log.categorical)
        ASSERT_EQ(batch.categorical.at(name)[token], user.categorical.at(name)[event]);
      for (const auto* names : {&log.dense, &log.labels})
        for (const auto& name : *names)
          ASSERT_EQ(batch.dense.at(name)[token], user.real.at(name)[event]);
      if (batch.target[token] == 0) {
        ASSERT_FALSE(targets) << "targets are the last tokens of a sample";
        for (const auto& name : log.labels)
          ASSERT_TRUE(std::isnan(batch.next_label.at(name)[token]));
      } else {
        targets = true;
        ASSERT_EQ(batch.target[token], user.item[event + 1]);
        for (const auto& name : log.labels)
          ASSERT_EQ(batch.next_label.at(name)[token], user.real.at(name)[event + 1]);
      }
    }
    ASSERT_TRUE(targets);
  }
}

/// A sample as a value: what it is, wherever it was dealt.
struct SampleValue {
  int64_t user;
  std::vector<int64_t> item, time, target;
  bool operator==(const SampleValue&) const = default;
};
using StepValue = std::map<int64_t, SampleValue>;  // by index in the step

void add_to(StepValue& step, const Batch& batch) {
  for (int64_t s = 0; s < batch.samples(); ++s) {
    const auto cut = [&](const std::vector<int64_t>& v) {
      return std::vector<int64_t>(v.begin() + batch.offsets[s], v.begin() + batch.offsets[s + 1]);
    };
    const bool fresh =
        step.emplace(batch.sample[s], SampleValue{batch.user[s], cut(batch.item), cut(batch.time),
                                                  cut(batch.target)})
            .second;
    EXPECT_TRUE(fresh) << "sample " << batch.sample[s] << " was dealt twice";
  }
}

struct Variant {
  int world, workers, prefetch;
  int64_t cache_bytes;
  BalancePlan::Deal deal;
};

std::vector<StepValue> steps_on(ReaderOptions options, const Variant& variant, int64_t steps,
                                const Cursor& from, const Log& log) {
  options.world = variant.world;
  options.workers = variant.workers;
  options.prefetch = variant.prefetch;
  options.cache_bytes = variant.cache_bytes;
  options.balance.deal = variant.deal;
  std::vector<std::unique_ptr<Reader>> readers;
  for (options.rank = 0; options.rank < variant.world; ++options.rank) {
    readers.push_back(open_reader(options));
    readers.back()->seek(from);
    EXPECT_EQ(readers.back()->cursor(), from);
  }
  std::vector<StepValue> values(steps);
  for (int64_t k = 0; k < steps; ++k) {
    int64_t samples = 0, tokens = 0, targets = 0;
    std::vector<Batch> batches;
    for (auto& reader : readers) batches.push_back(reader->next());
    for (int rank = 0; rank < variant.world; ++rank) {
      const Batch& batch = batches[rank];
      expect_events_of(log, batch);
      add_to(values[k], batch);
      EXPECT_EQ(batch.step, from.step + k);
      EXPECT_EQ(batch.rank_tokens, batches[0].rank_tokens);
      EXPECT_EQ(batch.rank_tokens[rank], batch.tokens());
      samples += batch.samples();
      tokens += batch.tokens();
      targets += std::count_if(batch.target.begin(), batch.target.end(),
                               [](int64_t id) { return id != 0; });
    }
    EXPECT_EQ(batches[0].global_samples, samples);
    EXPECT_EQ(batches[0].global_tokens, tokens);
    EXPECT_EQ(batches[0].global_targets, targets);
    for (int64_t i = 0; i < samples; ++i) EXPECT_TRUE(values[k].contains(i));
  }
  return values;
}

TEST(Reader, StepsAreTheSameOnAnyRanksThreadsAndMemory) {
  const auto by_length = BalancePlan::Deal::kByLength, in_order = BalancePlan::Deal::kInOrder;
  const std::vector<Variant> variants = {
      {1, 2, 1, 0, by_length}, {2, 1, 4, 1 << 30, in_order},  {2, 4, 2, 0, in_order},
      {3, 1, 3, 0, by_length}, {3, 4, 1, 1 << 30, by_length}, {4, 2, 4, 0, by_length}};
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Random random(seed, RandomUse::kSynthetic, 7);
    const auto between = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random.below(high - low + 1));
    };
    const TemporaryFolder folder;
    const Log log = random_log(seed, between(20, 90), 30, between(1, 3), between(3, 40));
    write_log(log, folder / "log");
    ReaderOptions options = options_for(log, folder / "log");
    options.max_length = between(1, 14);
    options.batch = between(1, 25);
    options.batch_tokens = between(0, 2) ? 0 : between(1, 80);
    options.shuffle_window = between(1, 100);
    options.holdout = between(0, 1) ? Holdout::kNone : Holdout::kLeaveLastOut;
    options.seed = seed;
    if (options.batch_tokens == 0 && between(0, 2) == 0) {
      options.balance.base_batch = between(1, 4);
      options.batch = options.balance.base_batch * between(1, 4);
    }
    const auto reader = open_reader(options);
    const int64_t epoch = reader->steps_per_epoch(0);
    ASSERT_GT(epoch, 0);
    const int64_t steps = 2 * epoch + 2;  // over two ends of an epoch
    const auto expected = steps_on(options, {1, 1, 4, 1 << 30, by_length}, steps, {}, log);
    for (const Variant& variant : variants) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", ranks " + std::to_string(variant.world) +
                   ", cache " + std::to_string(variant.cache_bytes));
      EXPECT_TRUE(steps_on(options, variant, steps, {}, log) == expected);
      // Resume somewhere, on these ranks: the very same from there on.
      const auto walker = open_reader(options);
      const int64_t at = between(0, steps - 1);
      for (int64_t k = 0; k < at; ++k) walker->next();
      EXPECT_TRUE(steps_on(options, variant, steps - at, walker->cursor(), log) ==
                  std::vector<StepValue>(expected.begin() + at, expected.end()))
          << "resumed at " << at << " of " << steps;
    }
  }
}

TEST(Reader, CursorAndEpochsFollowTheSteps) {
  const TemporaryFolder folder;
  const Log log = random_log(3, 40, 12);
  write_log(log, folder / "log");
  ReaderOptions options = options_for(log, folder / "log");
  options.batch = 7;
  const auto reader = open_reader(options);
  int64_t step = 0;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const int64_t steps = reader->steps_per_epoch(epoch);
    for (int64_t k = 0; k < steps; ++k, ++step) {
      EXPECT_EQ(reader->cursor(), (Cursor{epoch, k, step}));
      const Batch batch = reader->next();
      EXPECT_EQ(batch.epoch, epoch);
      EXPECT_EQ(batch.step, step);
      EXPECT_EQ(batch.last_of_epoch, k + 1 == steps);
    }
  }
  // The end of an epoch, however it is written.
  reader->seek({0, reader->steps_per_epoch(0), 11});
  const Batch batch = reader->next();
  EXPECT_EQ(batch.epoch, 1);
  EXPECT_EQ(batch.step, 11);
}

TEST(Reader, MoreRanksThanSamplesLeavesRanksEmpty) {
  const TemporaryFolder folder;
  Log log = random_log(1, 2, 0);
  for (auto& user : log.users) {
    user.item = {1, 2};
    user.time = {5, 5};
    for (const auto& name : log.categorical) user.categorical[name] = {1, 0};
    for (const auto* names : {&log.dense, &log.labels})
      for (const auto& name : *names) user.real[name] = {0.f, 1.f};
  }
  write_log(log, folder / "log");
  ReaderOptions options = options_for(log, folder / "log");
  options.world = 4;
  int64_t samples = 0;
  for (options.rank = 0; options.rank < 4; ++options.rank) {
    const auto reader = open_reader(options);
    const Batch batch = reader->next();
    samples += batch.samples();
    EXPECT_EQ(batch.global_samples, 2);
    EXPECT_TRUE(batch.last_of_epoch);
    EXPECT_EQ(batch.offsets.size(), batch.sample.size() + 1);
    EXPECT_TRUE(batch.categorical.contains("shop"));  // columns are there, though empty
    EXPECT_TRUE(batch.next_label.contains("like"));
  }
  EXPECT_EQ(samples, 2);
}

TEST(Reader, DealByLengthEvensOutTheRanks) {
  const TemporaryFolder folder;
  const Log log = random_log(5, 400, 60);
  write_log(log, folder / "log");
  ReaderOptions options = options_for(log, folder / "log");
  options.batch = 128;
  options.world = 4;
  const auto spread = [&](BalancePlan::Deal deal) {
    options.balance.deal = deal;
    const Batch batch = open_reader(options)->next();
    const auto [low, high] =
        std::minmax_element(batch.rank_tokens.begin(), batch.rank_tokens.end());
    return *high - *low;
  };
  EXPECT_GT(spread(BalancePlan::Deal::kInOrder), 60);
  EXPECT_LE(spread(BalancePlan::Deal::kByLength), 2);
}

TEST(Reader, ClosesInTheMiddleOfLoading) {
  const TemporaryFolder folder;
  const Log log = random_log(6, 500, 20, 3, 10);
  write_log(log, folder / "log");
  ReaderOptions options = options_for(log, folder / "log");
  options.batch = 8;
  options.workers = 3;
  for (const int64_t cache : {int64_t{0}, int64_t{1} << 30}) {
    options.cache_bytes = cache;
    options.shuffle_window = 50;
    for (int turn = 0; turn < 10; ++turn) {
      const auto reader = open_reader(options);
      if (turn % 2) reader->next();
      reader->seek({1, turn, 30});
      if (turn % 3) reader->next();
    }
  }
}

std::string error_of(const ReaderOptions& options) {
  try {
    const auto reader = open_reader(options);
    for (int64_t k = reader->steps_per_epoch(0); k >= 0; --k) reader->next();
  } catch (const UserError& e) {
    return e.what();
  }
  return "no error";
}

TEST(ReaderErrors, SayWhatIsWrongWithTheLog) {
  const TemporaryFolder folder;
  Log log = random_log(8, 50, 10, 2, 20);
  write_log(log, folder / "log");
  ReaderOptions options = options_for(log, folder / "log");
  EXPECT_EQ(error_of(options), "no error");
  const auto with = [&](auto change) {
    ReaderOptions changed = options;
    change(changed);
    return error_of(changed);
  };
  EXPECT_THAT(with([&](auto& o) { o.log = folder / "none"; }), HasSubstr("there is no log at"));
  EXPECT_THAT(with([&](auto& o) { o.log = folder / "log/part-00000.parquet"; }),
              HasSubstr("is a file, not a built log"));
  EXPECT_THAT(with([&](auto& o) { o.categorical = {"categry"}; }),
              AllOf(HasSubstr("column 'categry' is missing"), HasSubstr("'category'")));
  EXPECT_THAT(with([&](auto& o) { o.categorical = {"price"}; }), HasSubstr("list<int64>"));
  EXPECT_THAT(with([&](auto& o) { o.labels = {"shop"}; }), HasSubstr("list<float>"));
  EXPECT_THAT(with([&](auto& o) { o.batch = 0; }), HasSubstr("'batch' is 0"));
  EXPECT_THAT(with([&](auto& o) { o.balance.base_batch = 100; }), HasSubstr("does not divide"));

  write_log(log, folder / "unfinished", false);
  EXPECT_THAT(with([&](auto& o) { o.log = folder / "unfinished"; }),
              HasSubstr("has no workload.yaml"));

  log.format = kFormatVersion + 1;
  write_log(log, folder / "future");
  EXPECT_THAT(with([&](auto& o) { o.log = folder / "future"; }), HasSubstr("is of format 2"));
}

TEST(ReaderErrors, DamagedPartsAreNamed) {
  const TemporaryFolder folder;
  const Log log = random_log(9, 200, 10, 2, 20);
  const auto damaged = [&](const char* name, auto damage) {
    const std::string path = folder / name;
    write_log(log, path);
    damage(path + "/part-00001.parquet");
    return error_of(options_for(log, path));
  };
  using std::filesystem::file_size;
  const auto cut = damaged(
      "cut", [](const auto& part) { std::filesystem::resize_file(part, file_size(part) / 2); });
  EXPECT_THAT(cut, AllOf(HasSubstr("part-00001.parquet"), HasSubstr("damaged or cut short")));
  EXPECT_THAT(damaged("empty", [](const auto& part) { std::filesystem::resize_file(part, 0); }),
              AllOf(HasSubstr("part-00001.parquet"), HasSubstr("damaged or cut short")));
  EXPECT_THAT(damaged("missing", [](const auto& part) { std::filesystem::remove(part); }),
              HasSubstr("holds 1 part files, its workload.yaml says 2"));
  const auto flipped = damaged("flipped", [](const auto& part) {  // a hole in the pages
    std::fstream file(part, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<int64_t>(file_size(part) / 3));
    file << std::string(file_size(part) / 4, '\x5a');
  });
  EXPECT_THAT(flipped, HasSubstr("part-00001.parquet"));
}

TEST(ReaderErrors, ContentsThatCannotBe) {
  const TemporaryFolder folder;
  const auto changed = [&](const char* name, auto change) {
    Log log = random_log(10, 60, 10, 1, 20);
    log.users[50].item = {1, 2, 3};
    log.users[50].time = {7, 8, 9};
    for (const auto& c : log.categorical) log.users[50].categorical[c] = {1, 2, 3};
    for (const auto* names : {&log.dense, &log.labels})
      for (const auto& n : *names) log.users[50].real[n] = {1, 2, 3};
    change(log.users[50], log);
    write_log(log, folder / name);
    return error_of(options_for(log, folder / name));
  };
  EXPECT_EQ(changed("good", [](User&, Log&) {}), "no error");
  EXPECT_THAT(changed("id", [](User& u, Log& l) { u.item[1] = l.items + 1; }),
              AllOf(HasSubstr("row group 2, column 'item' holds the id 1000001"),
                    HasSubstr("1 to 1000000")));
  EXPECT_THAT(changed("zero", [](User& u, Log&) { u.item[1] = 0; }), HasSubstr("the id 0"));
  EXPECT_THAT(changed("shop", [](User& u, Log& l) { u.categorical["shop"][0] = l.categories + 1; }),
              HasSubstr("column 'shop' holds the id 1001"));
  EXPECT_THAT(changed("lists", [](User& u, Log&) { u.time.pop_back(); }),
              HasSubstr("column 'time' has 2 values in row 10, the column 'length' says 3"));
  EXPECT_THAT(changed("order", [](User& u, Log&) { u.time[2] = 1; }),
              HasSubstr("column 'time' runs backwards in row 10"));
}

TEST(ReaderErrors, NothingToTrainOn) {
  const TemporaryFolder folder;
  Log log = random_log(11, 0, 0);
  write_log(log, folder / "empty");
  EXPECT_EQ(open_reader(options_for(log, folder / "empty"))->steps_per_epoch(0), 0);
  EXPECT_THAT(error_of(options_for(log, folder / "empty")), HasSubstr("nothing to train on"));

  log = random_log(11, 20, 1);  // users of one event, or none
  write_log(log, folder / "one-event");
  EXPECT_THAT(error_of(options_for(log, folder / "one-event")), HasSubstr("nothing to train on"));
  log.parts = 0;
  log.users.clear();
  write_log(log, folder / "no-part");
  EXPECT_THAT(error_of(options_for(log, folder / "no-part")), HasSubstr("nothing to train on"));
}

TEST(ReaderErrors, ACursorOfAnotherLog) {
  const TemporaryFolder folder;
  const Log log = random_log(12, 30, 10);
  write_log(log, folder / "log");
  const auto reader = open_reader(options_for(log, folder / "log"));
  reader->seek({2, 900, 1000});
  try {
    reader->next();
    FAIL();
  } catch (const UserError& e) {
    EXPECT_THAT(e.what(), HasSubstr("cannot go on after step 900 of epoch 2"));
  }
}

}  // namespace
}  // namespace tautline::data
