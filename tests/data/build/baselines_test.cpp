// Popularity and rules: on a log small enough to rank by hand, and on two public logs against the
// numbers of an independent implementation (numpy, same protocol).
#include "tautline/data/build/baselines.h"

#include <cmath>
#include <filesystem>
#include <gmock/gmock.h>

#include "data/built.h"

namespace tautline::data {
namespace {

using namespace testing_build;
using testing::HasSubstr;

std::map<std::string, BaselineMetrics> baselines_of(const std::string& text) {
  TemporaryFolder folder;
  write_file(folder / "log.csv", "user,item,time\n" + text);
  BuildOptions options;
  options.log = folder / "log.csv";
  options.out = folder / "out";
  return build_log(options).baselines;
}

double gain(double rank) { return rank <= 10 ? 1 / std::log2(rank + 1) : 0; }

TEST(Baselines, PopularityByHand) {
  // Training events: u: a b (c, d held out); v: a (c, a held out); w: b (two events: trains all).
  // counts: a 2, b 2, w's x 1, c 0, d 0.
  const auto all = baselines_of(
      "u,a,1\nu,b,2\nu,c,3\nu,d,3\n"
      "v,a,1\nv,c,2\nv,a,3\n"
      "w,b,1\nw,x,2\n");
  const BaselineMetrics& popularity = all.at("popularity");
  // u: target d, 3 higher, 1 equal (c): 4.5; unseen without a, b, c: rank 2; not later (tie).
  // v: target a: 0 higher, 1 equal (b): 1.5; seen is {a, c}, a is the target and stays: 1.5; later.
  EXPECT_NEAR(popularity.ndcg_at_10, (gain(4.5) + gain(1.5)) / 2, 1e-12);
  EXPECT_NEAR(popularity.ndcg_at_10_unseen, (gain(2) + gain(1.5)) / 2, 1e-12);
  EXPECT_NEAR(popularity.ndcg_at_10_later, gain(1.5), 1e-12);
  EXPECT_EQ(popularity.hr_at_10, 1);
}

TEST(Baselines, RulesFindWhatFollows) {
  // Twelve users go round the same ring of 26 items, entering at different places: the next item is
  // certain to a rule, and popularity says nothing.
  std::string text;
  for (int user = 0; user < 12; ++user)
    for (int i = 0; i < 30; ++i)
      text += "u" + std::to_string(user) + "," +
              std::string(1, static_cast<char>('a' + (2 * user + i) % 26)) + "," +
              std::to_string(i) + "\n";
  const auto all = baselines_of(text);
  EXPECT_EQ(all.at("rules").hr_at_10, 1);
  EXPECT_EQ(all.at("rules").ndcg_at_10, 1);
  EXPECT_LT(all.at("popularity").ndcg_at_10, 0.5);
  EXPECT_THAT(all.at("rules").setting, HasSubstr("window 3, last 1"));
}

TEST(Baselines, NothingToMeasureIsNoError) {
  EXPECT_TRUE(baselines_of("u,a,1\nv,b,1\nv,c,2\n").empty());  // nobody has three events
  EXPECT_EQ(baselines_of("u,a,1\nu,a,1\nu,a,1\n").at("rules").ndcg_at_10, 1);  // one item only
}

TEST(Baselines, SampledUsersSayHowMany) {
  TemporaryFolder folder;
  std::string text = "user,item,time\n";
  for (int i = 0; i < 4000; ++i)
    text += "u" + std::to_string(i % 400) + ",i" + std::to_string(i * 7 % 31) + "," +
            std::to_string(i) + "\n";
  write_file(folder / "log.csv", text);
  BuildOptions options;
  options.log = folder / "log.csv";
  options.out = folder / "out";
  options.rule_events = 1000;
  const auto sampled = build_log(options).baselines;
  EXPECT_THAT(sampled.at("rules").setting, HasSubstr("one user in 4"));
  options.rule_events = 4000;
  options.overwrite = true;
  const auto whole = build_log(options).baselines;
  EXPECT_EQ(sampled.at("popularity"), whole.at("popularity"));
  EXPECT_THAT(whole.at("rules").setting, testing::Not(HasSubstr("one user in")));
}

struct Published {
  const char *file, *user, *item, *time, *setting;
  double popularity[6], rules[6];  // HR, NDCG: all, unseen, later
  friend std::ostream& operator<<(std::ostream& out, const Published& p) { return out << p.file; }
};

class PublicLogs : public testing::TestWithParam<Published> {};

TEST_P(PublicLogs, FourDigitsOfTheReference) {
  const Published& p = GetParam();
  const std::string log = std::string(TAUTLINE_SOURCE_DIR "/../shared/data/") + p.file;
  if (!std::filesystem::exists(log)) GTEST_SKIP() << log << " is not here";
  TemporaryFolder folder;
  BuildOptions options;
  options.log = log;
  options.out = folder / "out";
  options.user = p.user, options.item = p.item, options.time = p.time;
  const auto baselines = build_log(options).baselines;
  for (const auto& [name, expected] :
       {std::pair{"popularity", p.popularity}, std::pair{"rules", p.rules}}) {
    const BaselineMetrics& m = baselines.at(name);
    const double got[] = {m.hr_at_10,          m.ndcg_at_10,     m.hr_at_10_unseen,
                          m.ndcg_at_10_unseen, m.hr_at_10_later, m.ndcg_at_10_later};
    for (int i = 0; i < 6; ++i) EXPECT_NEAR(got[i], expected[i], 0.5001e-4) << name << " " << i;
  }
  EXPECT_EQ(baselines.at("rules").setting, p.setting);
}

INSTANTIATE_TEST_SUITE_P(All, PublicLogs,
                         testing::Values(Published{"movielens_latest_small/ratings.csv.gz",
                                                   "userId",
                                                   "movieId",
                                                   "timestamp",
                                                   "window 10, last 10, norm 0.25",
                                                   {.0197, .0092, .0377, .0178, .0174, .0076},
                                                   {.1016, .0554, .1197, .0653, .0756, .0385}},
                                         Published{"interactions/amazon_grocery_train.tsv.gz",
                                                   "user_id",
                                                   "item_id",
                                                   "time",
                                                   "window 10, last 3, norm 0",
                                                   {.0168, .0082, .0177, .0088, .0248, .0122},
                                                   {.0946, .0552, .0958, .0566, .0878, .0495}}),
                         [](const auto& info) {
                           return info.index == 0 ? "MovieLens" : "Grocery";
                         });

}  // namespace
}  // namespace tautline::data
