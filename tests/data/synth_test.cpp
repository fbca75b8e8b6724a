#include "tautline/data/synth.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>

#include "data/built.h"

namespace tautline::data {
namespace {

using namespace testing_build;
using testing::HasSubstr;

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

TEST(Synth, TheSeedDecidesAndThreadsDoNot) {
  TemporaryFolder folder;
  SynthOptions options;
  options.users = 1500;  // more than a chunk
  options.events_mean = 5;
  std::vector<std::string> logs;
  for (const auto& [seed, threads] : {std::pair{1, 1}, std::pair{1, 3}, std::pair{2, 1}}) {
    options.out = folder / ("log" + std::to_string(logs.size()) + ".csv");
    options.seed = static_cast<uint64_t>(seed);
    options.threads = threads;
    write_synthetic_log(options);
    logs.push_back(bytes_of(options.out));
  }
  EXPECT_TRUE(logs[0] == logs[1]);
  EXPECT_FALSE(logs[0] == logs[2]);
}

TEST(Synth, EveryFormatHoldsTheSameEvents) {
  TemporaryFolder folder;
  SynthOptions options;
  options.users = 50;
  LogStatistics first;
  for (const std::string name : {"a.csv", "a.tsv.gz", "a.csv.zst", "a.parquet"}) {
    options.out = folder / name;
    const int64_t events = write_synthetic_log(options);
    BuildOptions build;
    build.log = options.out;
    build.out = folder / ("built-" + name);
    build.action = "action";
    build.dense = {"price"};
    build.labels = {"clicked"};
    const LogStatistics statistics = build_log(build);
    EXPECT_EQ(statistics.events, events) << name;
    EXPECT_EQ(statistics.users, 50) << name;
    if (first.events == 0) first = statistics;
    EXPECT_EQ(statistics.length.p90, first.length.p90) << name;
    EXPECT_EQ(statistics.vocabularies.at("action"), first.vocabularies.at("action")) << name;
    EXPECT_EQ(statistics.baselines.at("popularity"), first.baselines.at("popularity")) << name;
  }
}

TEST(Synth, LengthsAreLogNormalAndTimesHaveDaysAndWeeks) {
  SynthOptions options;
  options.users = 4000;
  options.events_mean = 30;
  double events = 0, logs = 0, squares = 0, evening = 0, night = 0, weekend = 0, sessions = 0;
  for (int64_t user = 0; user < options.users; ++user) {
    const auto history = synthetic_user(options, user);
    const double n = static_cast<double>(history.size());
    events += n, logs += std::log(n), squares += std::log(n) * std::log(n);
    int64_t before = -1;
    for (const SynthEvent& event : history) {
      ASSERT_GT(event.time, before);
      if (event.time > before + 3600) {  // a session begins
        const int64_t hour = event.time / 3600 % 24, weekday = (event.time / 86400 + 3) % 7;
        sessions += 1, evening += hour >= 18 && hour < 22, night += hour >= 6 && hour < 10;
        weekend += weekday >= 5;
      }
      before = event.time;
    }
  }
  const double users = static_cast<double>(options.users), mean = logs / users;
  const double sigma = std::sqrt(squares / users - mean * mean);
  // Five standard errors, of ln length (0.8) and of its deviation; lengths are whole and at least
  // 1, which moves the mean of the logarithm by less than 0.01 here.
  EXPECT_NEAR(mean, std::log(30) - 0.32, 5 * 0.8 / std::sqrt(users) + 0.01);
  EXPECT_NEAR(sigma, 0.8, 5 * 0.8 / std::sqrt(2 * users) + 0.02);
  // Activity is 1 + 0.6 cos around 20 h, and 1.5 times as much on two days of seven.
  EXPECT_GT(evening, 2.5 * night);
  EXPECT_NEAR(weekend / sessions, 3.0 / 8, 0.03);
}

TEST(Synth, SequencesTellWhatPopularityCannot) {
  TemporaryFolder folder;
  SynthOptions options;
  options.out = folder / "log.csv";
  options.users = 2000;
  write_synthetic_log(options);
  BuildOptions build;
  build.log = options.out;
  build.out = folder / "built";
  const LogStatistics statistics = build_log(build);
  EXPECT_GT(statistics.baselines.at("rules").ndcg_at_10,
            4 * statistics.baselines.at("popularity").ndcg_at_10);
  EXPECT_GT(statistics.baselines.at("popularity").ndcg_at_10, 0.01);  // there is a head
  EXPECT_GT(statistics.vocabularies.at("item").zipf_exponent, 0.4);
}

TEST(Synth, TheItemBeforeTheLastTellsMore) {
  // Given the last item, the next one is spread over three successors; given the last two, mostly
  // one. Counted over many users: the share of the commonest next item.
  SynthOptions options;
  options.items = 100;
  std::map<int64_t, std::map<int64_t, int>> one;
  std::map<std::pair<int64_t, int64_t>, std::map<int64_t, int>> two;
  for (int64_t user = 0; user < 3000; ++user) {
    const auto h = synthetic_user(options, user);
    for (size_t i = 2; i < h.size(); ++i) {
      if (h[i].time > h[i - 2].time + 3600) continue;
      ++one[h[i - 1].item][h[i].item];
      ++two[{h[i - 2].item, h[i - 1].item}][h[i].item];
    }
  }
  const auto best_share = [](const auto& table) {
    double best = 0, all = 0;
    for (const auto& [context, next] : table) {
      int most = 0, sum = 0;
      for (const auto& [item, count] : next) most = std::max(most, count), sum += count;
      if (sum < 50) continue;
      best += most, all += sum;
    }
    return best / all;
  };
  EXPECT_GT(best_share(two), 1.3 * best_share(one));
}

TEST(Synth, LabelsDependOnUserAndItem) {
  // Were clicks independent of the user (item), the variance of a user's (item's) rate beyond what
  // coin flips explain would be 0.
  SynthOptions options;
  options.items = 200;
  std::map<int64_t, std::pair<double, double>> users, items;
  double clicks = 0, all = 0;
  for (int64_t user = 0; user < 2000; ++user)
    for (const SynthEvent& event : synthetic_user(options, user)) {
      for (auto* cell : {&users[user], &items[event.item]})
        cell->first += event.clicked, cell->second += 1;
      clicks += event.clicked, all += 1;
    }
  const double rate = clicks / all;
  EXPECT_GT(rate, 0.2);
  EXPECT_LT(rate, 0.8);
  for (const auto* table : {&users, &items}) {
    double excess = 0, cells = 0;
    for (const auto& [key, cell] : *table) {
      if (cell.second < 20) continue;
      const double own = cell.first / cell.second;
      excess += (own - rate) * (own - rate) - rate * (1 - rate) / cell.second;
      cells += 1;
    }
    EXPECT_GT(excess / cells, 0.01);
  }
}

TEST(Synth, SmallestSizesAndErrors) {
  TemporaryFolder folder;
  SynthOptions options;
  options.users = options.items = 1;
  options.events_mean = 1;
  options.out = folder / "deep/er/log.csv";
  EXPECT_GE(write_synthetic_log(options), 1);
  EXPECT_THROW(write_synthetic_log(options), UserError);  // exists
  options.overwrite = true;
  EXPECT_GE(write_synthetic_log(options), 1);
  for (const std::string name : {"log.xlsx", "log.csv.rar"}) {
    options.out = folder / name;
    EXPECT_THROW(write_synthetic_log(options), UserError);
  }
  options.out = folder / "none.csv";
  options.users = 0;
  EXPECT_THROW(write_synthetic_log(options), UserError);
}

}  // namespace
}  // namespace tautline::data
