#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tautline/base/error.h"
#include "tautline/base/random.h"
#include "tautline/timeline/activity.h"
#include "tautline/timeline/file.h"
#include "tautline/timeline/intervals.h"
#include "tautline/timeline/merge.h"
#include "tautline/timeline/perfetto.h"
#include "tautline/timeline/statistics.h"

namespace tautline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TimelineTest : public testing::Test {
 protected:
  TimelineTest() {
    std::string name = (std::filesystem::temp_directory_path() / "tautline-test-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~TimelineTest() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string text(const std::string& name) const {
    std::ostringstream out;
    out << std::ifstream(path(name)).rdbuf();
    return out.str();
  }
  std::string folder_;
};

TimelineEvent event(int64_t step, int rank, const char* stream, const char* kind, double start,
                    double end) {
  TimelineEvent e;
  e.step = step;
  e.rank = rank;
  e.stream = stream;
  e.kind = kind;
  e.start = start;
  e.end = end;
  return e;
}

TimelineEvent collective(int rank, int64_t sequence, double arrival, double start, double end) {
  TimelineEvent e = event(0, rank, "comm", "all_reduce", start, end);
  e.name = "bucket \"<2>\" é";
  e.arrival = arrival;
  e.bytes = 25e6;
  e.group = "world";
  e.tier = "node";
  e.sequence = sequence;
  return e;
}

TEST(Intervals, UnionDifferenceLength) {
  const std::vector<Interval> a = united({{5, 6}, {0, 2}, {1, 3}, {3, 4}, {9, 9}, {8, 7}});
  EXPECT_EQ(a, (std::vector<Interval>{{0, 4}, {5, 6}}));
  EXPECT_EQ(length(a), 5);
  EXPECT_EQ(without(a, {}), a);
  EXPECT_EQ(without(a, a), (std::vector<Interval>{}));
  EXPECT_EQ(without(a, {{-1, 1}, {2, 2.5}, {3.5, 5.5}, {7, 8}}),
            (std::vector<Interval>{{1, 2}, {2.5, 3.5}, {5.5, 6}}));
  EXPECT_EQ(without({{0, 1}, {2, 3}}, {{0.5, 2.5}}), (std::vector<Interval>{{0, 0.5}, {2.5, 3}}));
  EXPECT_EQ(length(without({{0, 10}}, {{0, 10}})), 0);
  EXPECT_EQ(common({{0, 2}, {3, 6}}, {{1, 4}, {5, 9}}),
            (std::vector<Interval>{{1, 2}, {3, 4}, {5, 6}}));
}

TEST_F(TimelineTest, FileRoundTripToTheBit) {
  Timeline timeline;
  timeline.header = {"5f3c9a1e", 4, 0.1 + 0.2};
  timeline.events = {collective(2, 412, 1.0 / 3, 2.0 / 3, 0.7), event(-1, 0, "host", "x", 0, 1e-9)};
  write_timeline(timeline, path("t.jsonl"));
  EXPECT_EQ(read_timeline(path("t.jsonl")), timeline);
}

TEST_F(TimelineTest, ALineCutShortByAKillIsLeftOut) {
  Timeline timeline;
  timeline.events = {event(0, 0, "a", "b", 0, 1), event(1, 0, "a", "b", 1, 2)};
  write_timeline(timeline, path("t"));
  std::filesystem::resize_file(path("t"), std::filesystem::file_size(path("t")) - 5);
  EXPECT_EQ(read_timeline(path("t")).events.size(), 1u);
  std::ofstream(path("bad")) << "{\"timeline\":1}\n{\"step\":\n{}\n";
  try {
    read_timeline(path("bad"));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("bad:2"));
  }
  EXPECT_THROW(read_timeline(path("none")), UserError);
}

// Rank 1's clock is 2 s behind rank 0's; shifted back, the ends agree to 1 ms.
TEST_F(TimelineTest, MergeShiftsAndMeasuresTheSpread) {
  Timeline a, b;
  a.header.plan_digest = "p";
  for (int64_t i = 0; i < 9; ++i) {
    const auto t = static_cast<double>(i);
    a.events.push_back(collective(0, i, t, t + 0.1, t + 0.5));
    b.events.push_back(collective(1, i, t - 2.2, t - 1.9, t - 1.5 + 0.001));
  }
  b.events.push_back(collective(1, 100, 0, 0, 50));  // alone: says nothing
  const Timeline raw = merge({{a, 0, ""}, {b, 0, ""}});
  EXPECT_NEAR(raw.header.clock_spread_seconds, 2 - 0.001, 1e-12);
  const Timeline merged = merge({{a, 0, ""}, {b, 2, ""}});
  EXPECT_NEAR(merged.header.clock_spread_seconds, 0.001, 1e-12);
  std::vector<TimelinePart> parts = {{a, 0, "one"}, {b, 0, "two"}, {{}, 5, "three"}};
  align_by_collectives(parts);
  EXPECT_NEAR(parts[1].shift, 2 - 0.001, 1e-12);
  EXPECT_EQ(parts[2].shift, 5);
  EXPECT_NEAR(merge(parts).header.clock_spread_seconds, 0, 1e-12);
  EXPECT_EQ(merged.header.world, 2);
  EXPECT_EQ(merged.header.plan_digest, "p");
  for (size_t i = 1; i < merged.events.size(); ++i)
    EXPECT_LE(merged.events[i - 1].start, merged.events[i].start);
  EXPECT_EQ(clock_spread({}), 0);
}

// Ranks of one host share its clock: rank 1 does end 3 ms after rank 0, and so it stays. Host two is
// shifted as a whole; host three shares collectives with host two alone, and four with none.
TEST_F(TimelineTest, EveryHostGetsOneShift) {
  const auto rank = [&](int number, const std::string& group, double offset, double late) {
    Timeline timeline;
    for (int64_t i = 0; i < 5; ++i) {
      const auto t = static_cast<double>(i) + offset;
      timeline.events.push_back(collective(number, i, t, t, t + 0.5 + late));
      timeline.events.back().group = group;
    }
    return timeline;
  };
  std::vector<TimelinePart> parts = {
      {rank(0, "a", 0, 0), 0, "one"},           {rank(1, "a", -4, 0.003), 4, "one"},
      {rank(2, "a", 100, 0), 0, "two"},         {rank(3, "b", 101, 0.002), -1, "two"},
      {rank(4, "b", -7000, 0.002), 0, "three"}, {rank(5, "c", 50, 0), 9, "four"}};
  align_by_collectives(parts);
  std::vector<double> shifts;
  for (const TimelinePart& part : parts) shifts.push_back(part.shift);
  const double two = -100 + 0.0015;  // to the mean of its peers' ends
  const std::vector<double> expected = {0, 4, two, two - 1, 7000 + 0.0015, 9};
  EXPECT_THAT(shifts, testing::Pointwise(testing::DoubleNear(1e-9), expected));
  align_by_collectives(parts);  // once more changes nothing
  EXPECT_NEAR(parts[4].shift, 7000 + 0.0015, 1e-9);
  std::vector<TimelinePart> none;
  align_by_collectives(none);
}

TEST_F(TimelineTest, PerfettoHasProcessesThreadsSlicesAndArrows) {
  Timeline timeline;
  timeline.events = {collective(0, 7, 1.0, 1.5, 2.0),
                     collective(1, 7, 1.5, 1.5, 2.0),
                     event(0, 0, "compute", "forward", 0.0, 1.0),
                     event(0, 0, "compute", "attention", 0.25, 0.5),
                     event(0, 0, "comm", "all_to_all", 1.75, 2.5),  // overlaps, does not nest
                     event(0, 1, "odd \"stream\"", "x", 0, 1)};
  write_perfetto(timeline, path("trace.json"));
  const nlohmann::json trace = nlohmann::json::parse(text("trace.json"));
  std::map<std::pair<int, int>, std::string> threads;
  std::map<int, std::string> processes;
  std::map<std::pair<int, int>, std::vector<Interval>> slices;
  std::vector<nlohmann::json> starts, finishes;
  for (const auto& e : trace.at("traceEvents")) {
    const std::pair<int, int> track{e.at("pid"), e.at("tid")};
    if (e.at("ph") == "M" && e.at("name") == "thread_name") threads[track] = e["args"]["name"];
    if (e.at("ph") == "M" && e.at("name") == "process_name")
      processes[track.first] = e["args"]["name"];
    if (e.at("ph") == "X")
      slices[track].push_back({e.at("ts"), e.at("ts").get<double>() + e.at("dur").get<double>()});
    if (e.at("ph") == "s") starts.push_back(e);
    if (e.at("ph") == "f") finishes.push_back(e);
  }
  EXPECT_THAT(processes, ElementsAre(testing::Pair(0, "rank 0"), testing::Pair(1, "rank 1")));
  std::multiset<std::string> names;
  for (const auto& [track, name] : threads) names.insert(name);
  EXPECT_THAT(names, ElementsAre("comm", "comm", "comm 2", "compute", "odd \"stream\""));
  for (const auto& [track, intervals] : slices) {
    EXPECT_TRUE(threads.contains(track));
    for (const Interval& a : intervals)  // on a track, slices nest or are apart
      for (const Interval& b : intervals)
        EXPECT_FALSE(a.start < b.start && b.start < a.end && a.end < b.end);
  }
  // The arrow leaves the rank that came last, rank 1.
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts[0].at("pid"), 1);
  EXPECT_EQ(finishes.at(0).at("pid"), 0);
  EXPECT_EQ(starts[0].at("id"), finishes[0].at("id"));
  EXPECT_THROW(write_perfetto(timeline, path("no/such/folder")), UserError);
  write_perfetto({}, path("empty.json"));
  EXPECT_TRUE(nlohmann::json::parse(text("empty.json")).at("traceEvents").empty());
}

// Two ranks, one step: rank 0 computes 4 s and communicates 3 s, 1 s of it hidden.
TEST(Statistics, OfAStepByHand) {
  Timeline timeline;
  timeline.events = {event(0, 0, "input", "input", 0, 1),
                     event(0, 0, "compute", "forward", 1, 3),
                     event(0, 0, "compute", "attention", 1.5, 2),  // inside forward
                     event(0, 0, "compute", "backward", 3, 5),
                     event(0, 0, "comm", "all_reduce", 4, 7),
                     event(0, 0, "checkpoint", "checkpoint", 0, 100),  // beside the step
                     event(0, 1, "compute", "forward", 1, 3),
                     event(0, 1, "comm", "all_reduce", 5, 7),
                     event(0, 1, "host", "step", 0, 8)};
  const TimelineStatistics s = statistics(timeline);
  ASSERT_EQ(s.ranks.size(), 2u);
  const RankStatistics& r = s.ranks[0];
  EXPECT_EQ(r.seconds,
            (StepSeconds{.span = 7, .compute = 4, .comm = 3, .exposed_comm = 2, .idle = 0}));
  EXPECT_EQ(r.kind_seconds.at("attention"), 0.5);
  EXPECT_EQ(r.kind_seconds.at("checkpoint"), 100);
  EXPECT_EQ(s.ranks[1].seconds.span, 8);
  EXPECT_EQ(s.ranks[1].seconds.idle, 4);  // 0..1, 3..5, 7..8
  EXPECT_EQ(s.steps, 1);
  EXPECT_EQ(s.step_seconds_p50, 8);
  EXPECT_DOUBLE_EQ(s.load_imbalance, 4 / 3.0);
  EXPECT_DOUBLE_EQ(s.exposed_comm_share, (2 / 7.0 + 2 / 8.0) / 2);
  EXPECT_DOUBLE_EQ(s.idle_share, (0 / 7.0 + 4 / 8.0) / 2);
}

// Exposed communication where the time for which a rank stands waiting, or the phases without their
// waits, would say something else. Each a step of 10 s.
StepSeconds of_step(std::vector<TimelineEvent> events) {
  Activity activity;
  activity.add(event(0, 0, "host", "step", 0, 10));
  for (const TimelineEvent& e : events) activity.add(e);
  return activity.seconds();
}

// The forward stands 2 s for a collective of its own (a full softmax): by phases it is hidden.
TEST(ExposedCommunication, AWaitInsideAPhaseOfWork) {
  const StepSeconds s =
      of_step({event(0, 0, "compute", "forward", 0, 6), event(0, 0, "compute", "wait", 1, 3),
               event(0, 0, "comm", "all_gather", 0.5, 3)});
  EXPECT_EQ(s, (StepSeconds{.span = 10, .compute = 4, .comm = 2.5, .exposed_comm = 2, .idle = 4}));
}

// Rows are packed for 3 s of the phase all_to_all, beside a collective that is under way: hidden, by
// the phase's name it is not.
TEST(ExposedCommunication, WorkInsideAPhaseOfCommunication) {
  const StepSeconds s =
      of_step({event(0, 0, "compute", "all_to_all", 0, 10), event(0, 0, "compute", "wait", 3, 5),
               event(0, 0, "comm", "all_to_all", 0, 5)});
  EXPECT_EQ(s, (StepSeconds{.span = 10, .compute = 8, .comm = 5, .exposed_comm = 2, .idle = 0}));
}

// A collective is under way while the rank waits for the reader: nobody waits for it, nothing hides
// it.
TEST(ExposedCommunication, ACollectiveThatNobodyWaitsFor) {
  const StepSeconds s =
      of_step({event(0, 0, "compute", "input", 0, 4), event(0, 0, "comm", "all_reduce", 1, 6),
               event(0, 0, "compute", "forward", 4, 10)});
  EXPECT_EQ(s, (StepSeconds{.span = 10, .compute = 6, .comm = 5, .exposed_comm = 3, .idle = 0}));
}

// Two collectives at once cost their union; two waits in a row for them would not cost more.
TEST(ExposedCommunication, TwoCollectivesAtOnce) {
  const StepSeconds s =
      of_step({event(0, 0, "compute", "forward", 0, 4), event(0, 0, "comm", "all_to_all", 2, 8),
               event(0, 0, "comm", "all_reduce", 3, 9), event(0, 0, "compute", "wait", 4, 9)});
  EXPECT_EQ(s.comm, 7);
  EXPECT_EQ(s.exposed_comm, 5);
  EXPECT_EQ(s.idle, 1);
}

// An evaluation and a checkpoint lie between two steps, with collectives and waits of their own.
TEST(ExposedCommunication, WhatLiesBetweenStepsIsNotTheirs) {
  Timeline timeline;
  timeline.events = {event(0, 0, "host", "step", 0, 2),
                     event(0, 0, "compute", "forward", 0, 2),
                     event(1, 0, "evaluation", "evaluation", 2, 7),
                     event(0, 0, "comm", "all_reduce", 3, 7),
                     event(0, 0, "compute", "wait", 3, 7),
                     event(1, 0, "checkpoint", "checkpoint", 7, 8),
                     event(1, 0, "host", "step", 8, 10),
                     event(1, 0, "compute", "forward", 8, 9)};
  const TimelineStatistics s = statistics(timeline);
  EXPECT_EQ(s.ranks[0].seconds,
            (StepSeconds{.span = 4, .compute = 3, .comm = 0, .exposed_comm = 0, .idle = 1}));
  EXPECT_EQ(s.step_seconds_p95, 2);
  EXPECT_EQ(s.exposed_comm_share, 0);
  EXPECT_EQ(s.idle_share, 0.25);
}

// Counted as it comes, in pieces that cut through everything, it is what it is at once.
TEST(Activity, SettledInPieces) {
  Random random(7, RandomUse::kSynthetic);
  const auto quarters = [&](int64_t n) { return static_cast<double>(random.below(n)) / 4; };
  std::vector<TimelineEvent> events;
  for (int64_t step = 0; step < 60; ++step) {
    const auto start = static_cast<double>(10 * step);
    events.push_back(event(step, 0, "host", "step", start, start + 9.5));
    for (const char* kind : {"forward", "wait", "input", "all_to_all"}) {
      const double from = start + quarters(40);
      events.push_back(event(step, 0, "compute", kind, from, from + quarters(20)));
      const double other = start + quarters(40);
      events.push_back(event(step, 0, "comm", kind, other, other + quarters(40)));
    }
  }
  Activity at_once, in_pieces;
  for (const TimelineEvent& e : events) at_once.add(e);
  for (const TimelineEvent& e : events) {
    in_pieces.add(e);
    if (e.kind == "step" && e.step % 7 == 6) in_pieces.settle(e.start - 0.125);
  }
  EXPECT_EQ(in_pieces.seconds(), at_once.seconds());
  EXPECT_GT(at_once.seconds().exposed_comm, 0);
  EXPECT_LT(at_once.seconds().exposed_comm, at_once.seconds().comm);
  EXPECT_EQ(Activity().seconds(), StepSeconds());
  EXPECT_EQ(Activity().seconds().exposed_share(), 0);
}

TEST(Statistics, StepsOfSomeRanksOnlyDoNotCount) {
  Timeline timeline;
  for (int64_t step = 0; step < 100; ++step)
    for (int rank = 0; rank < (step < 50 ? 2 : 1); ++rank)
      timeline.events.push_back(event(step, rank, "compute", "forward",
                                      static_cast<double>(step) * 10,
                                      static_cast<double>(step) * 10 + static_cast<double>(step)));
  const TimelineStatistics s = statistics(timeline);
  EXPECT_EQ(s.steps, 50);
  EXPECT_DOUBLE_EQ(s.step_seconds_p50, 24.5);
  EXPECT_DOUBLE_EQ(s.step_seconds_p95, 46.55);
  EXPECT_DOUBLE_EQ(s.load_imbalance, 1);
  EXPECT_EQ(statistics({}).ranks.size(), 0u);
  EXPECT_EQ(quantile({3, 1, 2}, 1), 3);
}

}  // namespace
}  // namespace tautline
