// What an epoch promises: every training event but a user's first is a target exactly once, steps
// are full, and everything is a function of (lengths, options, epoch).
#include "tautline/data/read/sampling.h"

#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <map>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

#include "tautline/base/random.h"

namespace tautline::data {

void PrintTo(const Sample& s, std::ostream* out) {
  *out << "{user " << s.user << ", begin " << s.begin << ", length " << s.length << ", targets "
       << s.targets << "}";
}

namespace {

using testing::ElementsAre;

LogShape random_shape(uint64_t seed, int64_t longest) {
  Random random(seed, RandomUse::kSynthetic);
  LogShape shape;
  const int64_t blocks = static_cast<int64_t>(random.below(6));
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t users = static_cast<int64_t>(random.below(40));  // blocks may be empty
    for (int64_t u = 0; u < users; ++u)
      shape.lengths.push_back(static_cast<int32_t>(random.below(longest + 1)));
    shape.block_begin.push_back(static_cast<int64_t>(shape.lengths.size()));
  }
  return shape;
}

std::vector<Step> all_steps(const LogShape& shape, const SamplingOptions& options, int64_t epoch) {
  EpochSampler sampler(shape, options, epoch);
  std::vector<Step> steps;
  for (Step step; sampler.next(step);) steps.push_back(step);
  return steps;
}

struct Case {
  LogShape shape;
  SamplingOptions options;
};

/// A hundred logs and options that straddle all edges of sampling.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Random random(seed, RandomUse::kSynthetic, 1);
    SamplingOptions options;
    options.max_length = 1 + static_cast<int64_t>(random.below(12));
    options.holdout = random.below(2) ? Holdout::kNone : Holdout::kLeaveLastOut;
    options.batch = 1 + static_cast<int64_t>(random.below(20));
    options.batch_tokens = random.below(3) ? 0 : 1 + static_cast<int64_t>(random.below(60));
    options.shuffle_window = 1 + static_cast<int64_t>(random.below(120));
    options.seed = seed;
    if (options.batch_tokens == 0 && random.below(3) == 0) {
      options.base_batch = 1 + static_cast<int64_t>(random.below(5));
      options.batch = options.base_batch * (1 + static_cast<int64_t>(random.below(4)));
    }
    all.push_back({random_shape(seed, 60), options});
  }
  return all;
}

TEST(TrainingLength, LeavesTwoOutWhereThereAreThree) {
  EXPECT_EQ(training_length(2, Holdout::kLeaveLastOut), 2);
  EXPECT_EQ(training_length(3, Holdout::kLeaveLastOut), 1);
  EXPECT_EQ(training_length(9, Holdout::kLeaveLastOut), 7);
  EXPECT_EQ(training_length(9, Holdout::kNone), 9);
}

TEST(AppendSamples, ShortHistoriesAreOneSample) {
  std::vector<Sample> samples;
  for (const int64_t events : {0, 1}) append_samples(7, 0, events, 3, 0, samples);
  EXPECT_THAT(samples, ElementsAre());
  append_samples(7, 0, 2, 3, 0, samples);
  append_samples(8, 1, 4, 3, 2, samples);  // max_length + 1 events: whole, whatever the phase
  EXPECT_THAT(samples, ElementsAre(Sample{7, 0, 0, 1, 1}, Sample{8, 1, 0, 3, 3}));
}

TEST(AppendSamples, LongHistoriesAreCutAtThePhase) {
  std::vector<Sample> samples;
  append_samples(0, 0, 9, 3, 0, samples);  // from the end: events 5-8, 2-5, 0-2
  EXPECT_THAT(samples,
              ElementsAre(Sample{0, 0, 5, 3, 3}, Sample{0, 0, 2, 3, 3}, Sample{0, 0, 0, 2, 2}));
  samples.clear();
  append_samples(0, 0, 9, 3, 2, samples);  // targets 7, 8 with full context; then 3-6, 0-3
  EXPECT_THAT(samples,
              ElementsAre(Sample{0, 0, 5, 3, 2}, Sample{0, 0, 3, 3, 3}, Sample{0, 0, 0, 3, 3}));
}

TEST(AppendSamples, EveryEventButTheFirstIsATargetExactlyOnce) {
  for (int64_t max_length = 1; max_length <= 8; ++max_length)
    for (int64_t events = 0; events <= 4 * max_length + 3; ++events)
      for (int64_t phase = 0; phase < max_length; ++phase) {
        std::vector<Sample> samples;
        append_samples(0, 0, events, max_length, phase, samples);
        EXPECT_EQ(count_samples(events, max_length, phase), static_cast<int64_t>(samples.size()));
        std::vector<int> seen(events, 0);
        for (const Sample& s : samples) {
          ASSERT_GE(s.begin, 0);
          ASSERT_GE(s.length, 1);
          ASSERT_LE(s.length, max_length);
          ASSERT_LE(s.targets, s.length);
          ASSERT_GE(s.targets, 1);
          ASSERT_LT(s.begin + s.length, events);
          for (int j = s.length - s.targets; j < s.length; ++j) ++seen[s.begin + j + 1];
        }
        for (int64_t event = 0; event < events; ++event)
          EXPECT_EQ(seen[event], event > 0) << event << " of " << events << ", phase " << phase;
      }
}

TEST(EpochSampler, CoversEveryTrainingEventOnce) {
  for (const auto& [shape, options] : cases()) {
    std::map<std::pair<int64_t, int64_t>, int> targets;
    for (const Step& step : all_steps(shape, options, 3))
      for (const Sample& s : step.samples) {
        EXPECT_GE(s.user, shape.block_begin[s.block]);
        EXPECT_LT(s.user, shape.block_begin[s.block + 1]);
        for (int j = s.length - s.targets; j < s.length; ++j) ++targets[{s.user, s.begin + j + 1}];
      }
    int64_t expected = 0;
    for (size_t user = 0; user < shape.lengths.size(); ++user) {
      const int64_t events = training_length(shape.lengths[user], options.holdout);
      expected += std::max<int64_t>(events - 1, 0);
      for (int64_t event = 1; event < events; ++event)
        EXPECT_EQ((targets[{static_cast<int64_t>(user), event}]), 1);
    }
    EXPECT_EQ(static_cast<int64_t>(targets.size()), expected);
  }
}

TEST(EpochSampler, StepsAreFullAndTheLastOneSaysSo) {
  for (const auto& [shape, options] : cases()) {
    const auto steps = all_steps(shape, options, 0);
    EXPECT_EQ(count_steps(shape, options, 0), static_cast<int64_t>(steps.size()));
    for (size_t k = 0; k < steps.size(); ++k) {
      const bool last = k + 1 == steps.size();
      EXPECT_EQ(steps[k].index, static_cast<int64_t>(k));
      EXPECT_EQ(steps[k].last_of_epoch, last);
      const int64_t samples = static_cast<int64_t>(steps[k].samples.size());
      ASSERT_GE(samples, 1);
      ASSERT_LE(samples, options.batch);
      int64_t tokens = 0;
      for (const Sample& s : steps[k].samples) tokens += s.length;
      if (options.batch_tokens == 0) {
        EXPECT_TRUE(last || samples == options.batch);
      } else {
        EXPECT_TRUE(samples == 1 || tokens <= options.batch_tokens);
        if (!last && samples < options.batch) {  // closed because one more would not have fitted
          EXPECT_GT(tokens + steps[k + 1].samples[0].length, options.batch_tokens);
        }
      }
    }
  }
}

TEST(EpochSampler, SkippingIsAsGoodAsReading) {
  for (const auto& [shape, options] : cases()) {
    const auto steps = all_steps(shape, options, 1);
    const int64_t count = static_cast<int64_t>(steps.size());
    for (const int64_t k : {int64_t{0}, int64_t{1}, count / 2, count - 1, count, count + 5}) {
      if (k < 0) continue;
      EpochSampler sampler(shape, options, 1);
      EXPECT_EQ(sampler.skip(k), std::min(k, count));
      Step step;
      for (int64_t i = k; i < count; ++i) {
        ASSERT_TRUE(sampler.next(step));
        EXPECT_EQ(step.samples, steps[i].samples) << "after skipping " << k << " of " << count;
        EXPECT_EQ(step.index, i);
        EXPECT_EQ(step.last_of_epoch, i + 1 == count);
      }
      EXPECT_FALSE(sampler.next(step));
    }
  }
}

// What bounded memory rests on: once a window is closed, no later step asks for it.
TEST(EpochSampler, ClosedWindowsStayClosed) {
  for (const auto& [shape, options] : cases()) {
    EpochSampler sampler(shape, options, 2);
    int64_t open = sampler.open_window(), users = 0;
    for (Step step; sampler.next(step);) {
      for (const Sample& s : step.samples) EXPECT_GE(sampler.window_of(s), open);
      EXPECT_GE(sampler.open_window(), open);
      open = sampler.open_window();
    }
    EXPECT_EQ(sampler.open_window(), sampler.windows());
    std::set<int32_t> blocks;
    for (int64_t window = 0; window < sampler.windows(); ++window)
      for (const int32_t block : sampler.blocks_of(window)) {
        EXPECT_TRUE(blocks.insert(block).second);
        users += shape.block_begin[block + 1] - shape.block_begin[block];
      }
    EXPECT_EQ(users, static_cast<int64_t>(shape.lengths.size()));
  }
}

TEST(EpochSampler, EpochsAndSeedsDiffer) {
  LogShape shape;
  shape.lengths.assign(500, 10);
  shape.block_begin = {0, 250, 500};
  SamplingOptions options;
  options.batch = 64;
  const auto first = all_steps(shape, options, 0), again = all_steps(shape, options, 0);
  EXPECT_EQ(first[0].samples, again[0].samples);
  EXPECT_NE(first[0].samples, all_steps(shape, options, 1)[0].samples);
  options.seed = 2;
  EXPECT_NE(first[0].samples, all_steps(shape, options, 0)[0].samples);
}

TEST(EpochSampler, ASmallLogIsShuffledWhole) {
  LogShape shape;
  shape.lengths.assign(4000, 5);
  shape.block_begin = {0, 1000, 2000, 3000, 4000};
  SamplingOptions options;
  options.batch = 400;
  std::vector<int> of_block(4, 0);
  const auto steps = all_steps(shape, options, 0);
  for (const Sample& s : steps[0].samples) ++of_block[s.block];
  // 400 of 4000 without replacement: 100 a block, standard deviation 8.2; five of them.
  for (const int count : of_block) EXPECT_NEAR(count, 100, 41);
}

TEST(EpochSampler, EveryPhaseIsDrawn) {
  LogShape shape;
  shape.lengths.assign(300, 30);
  shape.block_begin = {0, 300};
  SamplingOptions options;
  options.max_length = 7;
  options.holdout = Holdout::kNone;
  std::map<int32_t, int> tails;  // targets of the last sample of each user
  for (const Step& step : all_steps(shape, options, 0))
    for (const Sample& s : step.samples)
      if (s.begin + s.length == 29) ++tails[s.targets];
  EXPECT_EQ(tails.size(), 7u);  // phases 1..6, and 7 targets where the phase is 0
  // 300 draws of 7: 43 each, standard deviation 6.1; five of them.
  for (const auto& [targets, count] : tails) EXPECT_NEAR(count, 43, 31) << targets;
}

TEST(EpochSampler, BaseBatchShufflingEvensStepsAndKeepsTheEpoch) {
  LogShape shape;
  Random random(9, RandomUse::kSynthetic);
  for (int user = 0; user < 4000; ++user)
    shape.lengths.push_back(2 + static_cast<int32_t>(std::exp(3 + random.normal())));
  shape.block_begin = {0, 4000};
  SamplingOptions plain, shuffled;
  plain.batch = shuffled.batch = 64;
  shuffled.base_batch = 8;
  const auto loads = [&](const SamplingOptions& options, std::multiset<int64_t>& users) {
    std::vector<double> loads;
    for (const Step& step : all_steps(shape, options, 0)) {
      double load = 0;
      for (const Sample& s : step.samples) {
        load += s.length;
        users.insert(s.user);
      }
      if (!step.last_of_epoch) loads.push_back(load);
    }
    return loads;
  };
  std::multiset<int64_t> users, shuffled_users;
  const double before = balance::max_over_mean(loads(plain, users)) - 1;
  const double after = balance::max_over_mean(loads(shuffled, shuffled_users)) - 1;
  EXPECT_EQ(users, shuffled_users);
  EXPECT_LT(after, before / 2);
}

TEST(DrawEvaluatedUsers, DrawsFromThoseWithThreeEvents) {
  LogShape shape;
  for (int user = 0; user < 100; ++user) shape.lengths.push_back(user % 5);  // 3 and 4 qualify
  shape.block_begin = {0, 100};
  const auto all = draw_evaluated_users(shape, 1, 0);
  EXPECT_EQ(all.size(), 40u);
  EXPECT_EQ(draw_evaluated_users(shape, 1, 40), all);
  const auto drawn = draw_evaluated_users(shape, 1, 10);
  EXPECT_EQ(drawn.size(), 10u);
  EXPECT_TRUE(std::is_sorted(drawn.begin(), drawn.end()));
  EXPECT_EQ(std::set<int64_t>(drawn.begin(), drawn.end()).size(), 10u);
  for (const int64_t user : drawn) EXPECT_GE(shape.lengths[user], 3);
  EXPECT_EQ(drawn, draw_evaluated_users(shape, 1, 10));
  EXPECT_NE(drawn, draw_evaluated_users(shape, 2, 10));
}

}  // namespace
}  // namespace tautline::data
