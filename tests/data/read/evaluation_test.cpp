// Evaluation batches: every user once over all ranks, the right event held out, nothing of the
// future in the history.
#include <gmock/gmock.h>
#include <map>

#include <gtest/gtest.h>

#include "tautline/base/error.h"
#include "tautline/data/read/reader.h"

#include "data/log_writer.h"

namespace tautline::data {
namespace {

using namespace testing_log;

ReaderOptions options_for(const Log& log, const std::string& folder) {
  ReaderOptions options;
  options.log = folder;
  options.categorical = log.categorical;
  options.dense = log.dense;
  options.labels = log.labels;
  return options;
}

void expect_user(const Log& log, const EvaluationBatch& batch, int64_t s, int64_t held_out,
                 int64_t max_length) {
  const User& user = log.users[batch.user[s]];
  const int64_t known = static_cast<int64_t>(user.item.size()) - held_out;
  const int64_t first = batch.offsets[s], tokens = batch.offsets[s + 1] - first;
  ASSERT_EQ(tokens, std::min(known, max_length));
  for (int64_t j = 0; j < tokens; ++j) {
    const int64_t event = known - tokens + j;
    ASSERT_EQ(batch.item[first + j], user.item[event]);
    ASSERT_EQ(batch.time[first + j], user.time[event]);
    for (const auto& name : log.categorical)
      ASSERT_EQ(batch.categorical.at(name)[first + j], user.categorical.at(name)[event]);
    for (const auto* names : {&log.dense, &log.labels})
      for (const auto& name : *names)
        ASSERT_EQ(batch.dense.at(name)[first + j], user.real.at(name)[event]);
  }
  EXPECT_EQ(batch.target[s], user.item[known]);
  EXPECT_EQ(batch.later[s], user.time[known] > user.time[known - 1]);
  for (const auto& name : log.labels) EXPECT_EQ(batch.label.at(name)[s], user.real.at(name)[known]);
  const std::vector<int64_t> seen(batch.seen.begin() + batch.seen_offsets[s],
                                  batch.seen.begin() + batch.seen_offsets[s + 1]);
  EXPECT_EQ(seen, std::vector<int64_t>(user.item.begin(), user.item.begin() + known));
}

/// Users of each call, over all ranks.
std::vector<std::vector<int64_t>> read_all(const Log& log, ReaderOptions options, Split split,
                                           int world, int64_t users, int64_t batch_size) {
  const int64_t held_out = split == Split::kTest ? 1 : 2;
  std::vector<std::vector<int64_t>> calls;
  options.world = world;
  for (options.rank = 0; options.rank < world; ++options.rank) {
    const auto reader = open_evaluation(options, split, users, batch_size);
    EvaluationBatch batch;
    size_t call = 0;
    for (; reader->next(batch); ++call) {
      if (calls.size() <= call) {
        EXPECT_EQ(options.rank, 0) << "ranks differ in their number of calls";
        calls.emplace_back();
      }
      EXPECT_TRUE(batch.categorical.contains("shop") && batch.label.contains("like"));
      for (int64_t s = 0; s < batch.samples(); ++s) {
        calls[call].push_back(batch.user[s]);
        expect_user(log, batch, s, held_out, options.max_length);
      }
    }
    EXPECT_EQ(call, calls.size()) << "ranks differ in their number of calls";
    EXPECT_FALSE(reader->next(batch));
    EXPECT_EQ(batch.samples(), 0);
  }
  for (auto& call : calls) std::sort(call.begin(), call.end());
  return calls;
}

TEST(EvaluationReader, EveryUserOnceOnAnyNumberOfRanks) {
  const TemporaryFolder folder;
  const Log log = random_log(21, 100, 12, 3, 9);
  write_log(log, folder / "log");
  ReaderOptions options = options_for(log, folder / "log");
  options.max_length = 5;
  std::vector<int64_t> eligible;
  for (size_t u = 0; u < log.users.size(); ++u)
    if (log.users[u].item.size() >= 3) eligible.push_back(static_cast<int64_t>(u));
  for (const Split split : {Split::kValidation, Split::kTest})
    for (const int64_t batch : {1, 7, 1000}) {
      const auto expected = read_all(log, options, split, 1, 0, batch);
      std::vector<int64_t> all;
      for (const auto& call : expected) {
        EXPECT_LE(static_cast<int64_t>(call.size()), batch);
        all.insert(all.end(), call.begin(), call.end());
      }
      EXPECT_EQ(all, eligible);
      for (const int world : {2, 3, 8}) {
        options.workers = world;
        EXPECT_EQ(read_all(log, options, split, world, 0, batch), expected);
      }
    }
}

TEST(EvaluationReader, DrawsTheSameUsersForBothSplits) {
  const TemporaryFolder folder;
  const Log log = random_log(22, 100, 12, 1, 9);
  write_log(log, folder / "log");
  const ReaderOptions options = options_for(log, folder / "log");
  const auto drawn = read_all(log, options, Split::kTest, 2, 13, 5);
  EXPECT_EQ(drawn.size(), 3u);
  EXPECT_EQ(drawn, read_all(log, options, Split::kValidation, 3, 13, 5));
}

TEST(EvaluationReader, NoUserIsNoCall) {
  const TemporaryFolder folder;
  const Log log = random_log(23, 20, 2);
  write_log(log, folder / "log");
  EXPECT_TRUE(read_all(log, options_for(log, folder / "log"), Split::kTest, 2, 0, 4).empty());
}

TEST(EvaluationReader, NeedsAHoldout) {
  const TemporaryFolder folder;
  const Log log = random_log(24, 20, 9);
  write_log(log, folder / "log");
  ReaderOptions options = options_for(log, folder / "log");
  options.holdout = Holdout::kNone;
  EXPECT_THROW(open_evaluation(options, Split::kTest, 0, 4), UserError);
}

}  // namespace
}  // namespace tautline::data
