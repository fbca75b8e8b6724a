#include "tautline/train/metric_log.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <limits>

#include <gtest/gtest.h>

#include "tautline/base/error.h"
#include "tautline/train/event_file.h"

#include "train/scratch.h"

namespace tautline::train {
namespace {

using testing::ElementsAre;

// RFC 3720 B.4, and the check value of the Castagnoli polynomial.
TEST(EventFile, Crc32c) {
  EXPECT_EQ(crc32c("123456789", 9), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0').data(), 32), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff').data(), 32), 0x62A8AB43u);
  EXPECT_EQ(crc32c("", 0), 0u);
}

MetricRecord record(int64_t step, double loss) {
  return {
      "train", step, step / 10, 1000.5 + static_cast<double>(step), {{"loss", loss}, {"lr", 1e-3}}};
}

TEST(MetricLog, ReadBackAtFullPrecision) {
  const Scratch scratch;
  MetricLog log(scratch.path("run"), 0);
  log.write(record(1, 0.1 + 0.2));
  log.write({"validation", 1, 0, 0, {{"ndcg@10", std::numeric_limits<double>::quiet_NaN()}}});
  const auto records = read_metric_log(scratch.path("run"));  // while it is still open
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].kind, "train");
  EXPECT_EQ(records[0].time, 1001.5);
  EXPECT_THAT(records[0].values, ElementsAre(std::pair<std::string, double>("loss", 0.1 + 0.2),
                                             std::pair<std::string, double>("lr", 1e-3)));
  EXPECT_TRUE(std::isnan(records[1].values[0].second));
  EXPECT_GT(records[1].time, 1.7e9);  // now
}

TEST(MetricLog, AResumedRunDropsTheStepsThatItRepeats) {
  const Scratch scratch;
  {
    MetricLog log(scratch.path(), 0);
    for (int64_t step : {1, 2, 3, 4, 5}) log.write(record(step, 10));
  }
  std::ofstream(scratch.path("metrics.jsonl"), std::ios::app) << "{\"kind\":\"train\",\"st";
  {
    MetricLog log(scratch.path(), 3);
    for (int64_t step : {4, 5, 6}) log.write(record(step, 20));
  }
  std::vector<double> losses;
  for (const MetricRecord& r : read_metric_log(scratch.path()))
    losses.push_back(r.values[0].second);
  EXPECT_THAT(losses, ElementsAre(10, 10, 10, 20, 20, 20));
  // TensorBoard shows the same; a folder of a new run starts empty.
  EXPECT_EQ(python_in(scratch, R"(
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
a = EventAccumulator("tensorboard"); a.Reload()
assert a.Tags()["scalars"] == ["train/loss", "train/lr"], a.Tags()
got = [(e.step, e.value, e.wall_time) for e in a.Scalars("train/loss")]
want = [(s, 10 if s < 4 else 20, 1000.5 + s) for s in range(1, 7)]
assert got == want, got
)"),
            0);
  { MetricLog log(scratch.path(), 0); }
  EXPECT_TRUE(read_metric_log(scratch.path()).empty());
  const auto files = std::filesystem::directory_iterator(scratch.path("tensorboard"));
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST(MetricLog, FolderThatCannotBeWritten) {
  const Scratch scratch;
  std::ofstream(scratch.path("file")) << "x";
  EXPECT_THROW(MetricLog(scratch.path("file"), 0), UserError);
  const auto error_of = [&](auto make) -> std::string {
    try {
      make();
      return "no error";
    } catch (const UserError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(error_of([&] { EventFile(scratch.path("file"), 0); }),
              testing::EndsWith(": Not a directory"));
  // A full disk: each file says its reason.
  std::filesystem::create_symlink("/dev/full", scratch.path("metrics.jsonl"));
  EXPECT_EQ(error_of([&] { MetricLog(scratch.path(), 0).write(record(1, 2)); }),
            "cannot write " + scratch.path("metrics.jsonl") + ": No space left on device");
}

TEST(MetricLog, TerminalText) {
  EXPECT_EQ(terminal_text({{"loss", 5.21304}, {"ndcg@10", 0.05023}, {"tokens_per_s", 12345}}),
            "loss 5.213  ndcg@10 0.0502  12.3 k tokens/s");
  EXPECT_EQ(terminal_text({{"lr", 1e-5}, {"x", 0}, {"y", NAN}}), "lr 1.000e-05  x 0.0000  y nan");
  EXPECT_EQ(terminal_text({}), "");
}

}  // namespace
}  // namespace tautline::train
