#include "tautline/train/recorder.h"

#include <gmock/gmock.h>
#include <set>
#include <thread>

#include <gtest/gtest.h>

namespace tautline::train {
namespace {

TimelineEvent event(int64_t step, std::string stream, std::string kind, double start, double end) {
  TimelineEvent e;
  e.step = step;
  e.stream = std::move(stream);
  e.kind = std::move(kind);
  e.start = start;
  e.end = end;
  return e;
}

TEST(Recorder, ASpanHasItsTimesAndCounts) {
  Recorder recorder({.rank = 3});
  {
    auto span = recorder.span(0, "compute", "forward", "layer.0");
    span.add_bytes(10);
    span.add_flop(2e9);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const double end = recorder.now();
  const Timeline timeline = recorder.timeline();
  ASSERT_EQ(timeline.events.size(), 1u);
  const TimelineEvent& e = timeline.events[0];
  EXPECT_EQ(std::tie(e.rank, e.stream, e.kind, e.name),
            std::make_tuple(3, "compute", "forward", "layer.0"));
  EXPECT_EQ(e.bytes, 10);
  EXPECT_EQ(e.flop, 2e9);
  EXPECT_GE(e.end - e.start, 0.002);
  EXPECT_LE(e.end, end);
  EXPECT_EQ(timeline.header.world, 4);
}

TEST(Recorder, AMovedSpanIsRecordedOnce) {
  Recorder recorder;
  {
    auto span = recorder.span(0, "comm", "all_reduce");
    const auto moved = std::move(span);
  }
  EXPECT_EQ(recorder.timeline().events.size(), 1u);
}

TEST(Recorder, SumsOfAllStepsEventsOfSome) {
  Recorder recorder({.rank = 0, .full_steps = 5, .every = 100});
  for (int64_t step = 40; step < 1000; ++step) {
    const auto start = static_cast<double>(step);
    recorder.add(event(step, "compute", "forward", start, start + 0.25));
    recorder.add(event(step, "compute", "forward", start + 0.5, start + 0.75));
    // The last step's all-reduce may come in after this step's first events.
    if (step > 40) recorder.add(event(step - 1, "comm", "all_reduce", start, start + 0.125));
  }
  const auto phases = recorder.phases();
  ASSERT_EQ(phases.size(), 960u);
  for (size_t i = 0; i < phases.size(); ++i) {
    EXPECT_EQ(phases[i].step, 40 + static_cast<int64_t>(i));
    EXPECT_EQ(phases[i].seconds.at({"compute", "forward"}), 0.5);
    EXPECT_EQ(phases[i].seconds.size(), i + 1 == phases.size() ? 1u : 2u);
  }
  EXPECT_EQ(recorder.totals().at({"comm", "all_reduce"}), 959 * 0.125);
  std::set<int64_t> kept;
  for (const TimelineEvent& e : recorder.timeline().events) kept.insert(e.step);
  EXPECT_THAT(
      kept, testing::ElementsAre(40, 41, 42, 43, 44, 100, 200, 300, 400, 500, 600, 700, 800, 900));
}

// Exposed communication is that of all steps, also of those whose events are not kept; a GPU's events
// come 100 steps late.
TEST(Recorder, WhatStepsAreBusyWithIsOfAllSteps) {
  Recorder recorder({.full_steps = 5, .every = 0});
  std::vector<TimelineEvent> late;
  for (int64_t step = 0; step < 2000; ++step) {
    const auto start = static_cast<double>(step);
    recorder.add(event(step, "host", "step", start, start + 0.875));
    late.push_back(event(step, "compute", "forward", start, start + 0.5));
    late.push_back(event(step, "comm", "all_reduce", start + 0.25, start + 0.75));
    if (step % 100 != 99) continue;
    for (const TimelineEvent& e : late) recorder.add(e);
    late.clear();
  }
  EXPECT_EQ(recorder.step_seconds(), (StepSeconds{.span = 2000 * 0.875,
                                                  .compute = 1000,
                                                  .comm = 1000,
                                                  .exposed_comm = 500,
                                                  .idle = 2000 * 0.125}));
}

TEST(Recorder, MemoryIsBounded) {
  Recorder recorder({.full_steps = 1000, .every = 1, .max_events = 10, .max_steps = 7});
  for (int64_t step = 0; step < 100; ++step) recorder.add(event(step, "comm", "x", 0, 1));
  EXPECT_EQ(recorder.timeline().events.size(), 10u);
  EXPECT_EQ(recorder.dropped(), 90);
  EXPECT_EQ(recorder.phases().size(), 7u);
  EXPECT_EQ(recorder.phases().back().step, 99);
  EXPECT_EQ(recorder.totals().at({"comm", "x"}), 100);
}

TEST(Recorder, ManyThreads) {
  Recorder recorder({.full_steps = 1000});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&recorder, t] {
      for (int64_t step = 0; step < 500; ++step)
        const auto span = recorder.span(step, "stream" + std::to_string(t), "work");
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(recorder.timeline().events.size(), 2000u);
  EXPECT_EQ(recorder.phases().size(), 500u);
}

}  // namespace
}  // namespace tautline::train
