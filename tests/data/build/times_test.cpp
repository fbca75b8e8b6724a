// Columns that sort like times and are none.
#include "tautline/data/build/times.h"

#include <gmock/gmock.h>

#include "tautline/data/build/build.h"

#include "data/built.h"

namespace tautline::data {
namespace {

using namespace testing_build;
using testing::HasSubstr;

constexpr int64_t kYear2020 = 1'577'836'800;

/// What building warns of, for events whose times `time(i)` gives.
template <class Time>
std::string warning_of(int64_t events, Time time, TimeUnit unit = TimeUnit::kSeconds) {
  TemporaryFolder folder;
  std::string text = "user,item,time\n";
  for (int64_t i = 0; i < events; ++i)
    text +=
        std::to_string(i % 50) + "," + std::to_string(i % 7) + "," + std::to_string(time(i)) + "\n";
  write_file(folder / "log.csv", text);
  BuildOptions options;
  options.log = folder / "log.csv";
  options.out = folder / "out";
  options.time_unit = unit;
  options.baselines = false;
  options.partition_bytes = 4096;  // several partitions
  std::string warning;
  build_log(options, {}, [&](const std::string& sentence) { warning = sentence; });
  return warning;
}

TEST(Times, ALogsOwnAreNoCauseForDoubt) {
  EXPECT_EQ(warning_of(5000, [](int64_t i) { return kYear2020 + 60 * i; }), "");
  EXPECT_EQ(warning_of(5000, [](int64_t i) { return kYear2020 + 86400 * (i % 2); }), "");  // half
  EXPECT_EQ(warning_of(1000, [](int64_t) { return kYear2020; }), "");                      // few
}

TEST(Times, IdsAndRatingsAreTold) {
  EXPECT_EQ(warning_of(5000, [](int64_t i) { return i + 1; }),
            "all times in the column 'time' lie before 1971, 1 to 5000 s since 1970; are they the "
            "events' times? --time names another column, --time-unit another unit");
  EXPECT_THAT(warning_of(10, [](int64_t i) { return i % 5; }), HasSubstr("lie before 1971"));
}

TEST(Times, AnotherUnitIsTold) {
  const auto seconds = [](int64_t i) { return kYear2020 + 60 * i; };
  EXPECT_THAT(warning_of(100, seconds, TimeUnit::kMilliseconds), HasSubstr("before 1971"));
  EXPECT_THAT(warning_of(100, seconds, TimeUnit::kNanoseconds), HasSubstr("before 1971"));
  // Milliseconds as seconds lie beyond the year 5000, which is an error; in between is doubtful.
  EXPECT_THAT(warning_of(100, [](int64_t i) { return 40'000'000'000 + i; }),
              HasSubstr("beyond the year 3000"));
  EXPECT_THROW(warning_of(100, [](int64_t i) { return 1000 * (kYear2020 + i); }), UserError);
}

TEST(Times, OneMomentIsTold) {
  EXPECT_THAT(warning_of(1001, [](int64_t) { return kYear2020; }), HasSubstr("in the same second"));
  EXPECT_THAT(
      warning_of(
          1001, [](int64_t i) { return 1000 * kYear2020 + i % 1000; }, TimeUnit::kMilliseconds),
      HasSubstr("in the same second"));
  EXPECT_THAT(warning_of(3000, [](int64_t i) { return i % 5 < 3 ? 0 : kYear2020 + i; }),
              HasSubstr("1800 of 3000 times in the column 'time' are the same"));
}

TEST(Times, TheVoteFindsAMajority) {
  for (int64_t period : {2, 3, 5}) {
    MajorityVote vote;
    for (int64_t i = 0; i < 301; ++i) vote.add(i % period == 1 ? i : -7);
    EXPECT_EQ(vote.candidate(), -7) << period;
  }
}

}  // namespace
}  // namespace tautline::data
