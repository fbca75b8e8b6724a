#include "tautline/train/run_files.h"

#include <deque>
#include <filesystem>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tautline/timeline/file.h"

#include "train/scratch.h"

namespace tautline::train {
namespace {

namespace fs = std::filesystem;

// Ranks in one process: all but rank 0 first, each leaving its text.
class Ranks {
 public:
  explicit Ranks(std::vector<std::string> clocks) {
    job_.run_dir = scratch_.path();
    for (size_t r = 0; r < clocks.size(); ++r)
      recorders_.emplace_back(RecorderOptions{.rank = static_cast<int>(r), .clock = clocks[r]});
    texts_.resize(clocks.size());
  }
  /// An event of rank `r` by rank 0's clock, told by its own, which is `ahead` of it.
  void add(size_t r, TimelineEvent event, double ahead) {
    const double shift = ahead - (recorders_[r].origin() - recorders_[0].origin());
    event.start += shift;
    event.end += shift;
    if (event.arrival != -1) event.arrival += shift;
    recorders_[r].add(event);
  }
  std::string path(const std::string& name) const { return scratch_.path(name); }
  const Unwritten& unwritten() const { return unwritten_; }
  Timeline join() {
    Timeline joined = join_any();
    EXPECT_TRUE(unwritten_.empty());
    EXPECT_EQ(read_timeline(scratch_.path("timeline.jsonl")), joined);
    EXPECT_TRUE(fs::exists(scratch_.path("timeline.json")));
    EXPECT_FALSE(fs::exists(scratch_.path("timeline-rank-0.jsonl")));
    return joined;
  }
  Timeline join_any() {
    Timeline joined;
    for (size_t r = recorders_.size(); r-- > 0;)
      joined = write_timelines(
          job_, recorders_[r], static_cast<int>(r), static_cast<int>(recorders_.size()),
          [&](const std::string& mine) {
            texts_[r] = mine;
            return texts_;
          },
          unwritten_);
    return joined;
  }

 private:
  Scratch scratch_;
  Job job_;
  std::deque<Recorder> recorders_;
  std::vector<std::string> texts_;
  Unwritten unwritten_;
};

TimelineEvent event(int64_t step, const char* stream, const char* kind, double start, double end) {
  TimelineEvent e;
  e.step = step;
  e.stream = stream;
  e.kind = kind;
  e.start = start;
  e.end = end;
  return e;
}

// Steps of 1 s: 0.5 s of work, then an all-reduce to which rank r comes r x 10 ms late, and which ends
// on all ranks together, but `lag` later on rank 1.
Timeline four_ranks(const std::vector<std::string>& clocks, double ahead, double lag) {
  Ranks ranks(clocks);
  for (int64_t step = 0; step < 10; ++step)
    for (size_t r = 0; r < 4; ++r) {
      const auto start = static_cast<double>(step);
      const double arrival = start + 0.5 + 0.01 * static_cast<double>(r);
      TimelineEvent sum = event(step, "comm", "all_reduce", arrival, start + 0.75 + lag * (r == 1));
      sum.arrival = arrival;
      sum.group = "dense";
      sum.sequence = step;
      const double by = r < 2 ? 0 : ahead;
      ranks.add(r, event(step, "compute", "backward", start, arrival), by);
      ranks.add(r, sum, by);
    }
  return ranks.join();
}

void expect_one_clock(const Timeline& timeline, double tolerance) {
  ASSERT_EQ(timeline.events.size(), 80u);
  for (const TimelineEvent& e : timeline.events) {
    const auto start = static_cast<double>(e.step);
    const double arrival = start + 0.5 + 0.01 * e.rank;
    EXPECT_NEAR(e.stream == "comm" ? e.arrival : e.end, arrival, tolerance) << e.rank;
    EXPECT_NEAR(e.stream == "comm" ? e.start : e.end, arrival, tolerance) << e.rank;
  }
}

// Two emulated hosts of two ranks each; the second one's clock is 7.25 s ahead, or an hour behind.
TEST(RunFiles, HostsAreAlignedByTheirCollectives) {
  for (const double ahead : {7.25, -3600.0}) {
    const Timeline joined = four_ranks({"one", "one", "two", "two"}, ahead, 0);
    expect_one_clock(joined, 1e-6);
    EXPECT_LT(joined.header.clock_spread_seconds, 1e-6);
    EXPECT_EQ(joined.header.world, 4);
  }
}

// On one host nothing is shifted: rank 1 does end 20 ms later, and no clock follows it.
TEST(RunFiles, RanksOfOneHostShareItsClock) {
  const Timeline joined = four_ranks({"one", "one", "one", "one"}, 0, 0.02);
  expect_one_clock(joined, 1e-6);
  EXPECT_NEAR(joined.header.clock_spread_seconds, 0.02, 1e-6);
  EXPECT_EQ(steady_clock_name(), Recorder().clock());
  EXPECT_FALSE(steady_clock_name().empty());
}

TimelineEvent any_event() { return event(0, "compute", "forward", 0, 1); }

TEST(RunFiles, ATimelineThatCannotBeWrittenLeavesTheOtherAndSaysWhy) {
  Ranks ranks({"one", "one"});
  for (size_t r = 0; r < 2; ++r) ranks.add(r, any_event(), 0);
  fs::create_symlink("/dev/full", ranks.path("timeline.json"));
  EXPECT_EQ(ranks.join_any().events.size(), 2u);
  EXPECT_THAT(ranks.unwritten(),
              testing::ElementsAre("cannot write " + ranks.path("timeline.json") +
                                   ": No space left on device"));
  EXPECT_EQ(read_timeline(ranks.path("timeline.jsonl")).events.size(), 2u);
}

// Rank 1 cannot write its part: rank 0 says it, and joins nothing that would lack a rank.
TEST(RunFiles, APartThatIsMissingIsToldByRankZero) {
  Ranks ranks({"one", "one"});
  for (size_t r = 0; r < 2; ++r) ranks.add(r, any_event(), 0);
  fs::create_symlink("/dev/full", ranks.path("timeline-rank-1.jsonl"));
  ranks.join_any();
  ASSERT_EQ(ranks.unwritten().size(), 1u);
  EXPECT_THAT(ranks.unwritten()[0], testing::HasSubstr("timeline-rank-1.jsonl: No space left"));
  EXPECT_FALSE(fs::exists(ranks.path("timeline.jsonl")));
  EXPECT_FALSE(fs::exists(ranks.path("timeline-rank-0.jsonl")));
}

}  // namespace
}  // namespace tautline::train
