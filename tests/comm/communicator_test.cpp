// Collectives on data whose result is exact in any order; ranks are threads.
#include "tautline/comm/communicator.h"

#include <thread>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tautline/base/error.h"
#include "tautline/comm/stop.h"
#include "tautline/comm/threads.h"

namespace tautline::comm {
namespace {

using Reduction = Communicator::Reduction;

class Worlds : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Worlds, testing::Values(1, 2, 3, 4));

TEST_P(Worlds, AllReduceSumsAndTakesTheMaximum) {
  const int world = GetParam();
  run_rank_threads(world, [&](Communicator c) {
    ASSERT_EQ(c.size(), world);
    for (const int64_t n : {0, 1, 1000}) {
      at::Tensor sum = at::full({n}, c.rank() + 1, at::kFloat);
      c.all_reduce(sum, Reduction::kSum, "sum").wait();
      EXPECT_TRUE(at::equal(sum, at::full({n}, world * (world + 1) / 2, at::kFloat)));
      at::Tensor most = at::full({n}, c.rank(), at::kLong);
      c.all_reduce(most, Reduction::kMax, "max").wait();
      EXPECT_TRUE(at::equal(most, at::full({n}, world - 1, at::kLong)));
    }
  });
}

// Rank r sends r + p rows of value 10 r + p to rank p; with `empty` some ranks send nothing at all.
TEST_P(Worlds, AllToAllOfUnevenRows) {
  const int world = GetParam();
  for (const bool empty : {false, true}) {
    run_rank_threads(world, [&](Communicator c) {
      const auto rows = [&](int from, int to) -> int64_t {
        return empty && from != 1 ? 0 : from + to;
      };
      std::vector<int64_t> in_splits, out_splits;
      std::vector<at::Tensor> in, expected;
      for (int peer = 0; peer < world; ++peer) {
        in_splits.push_back(rows(c.rank(), peer));
        out_splits.push_back(rows(peer, c.rank()));
        in.push_back(at::full({in_splits.back(), 3}, 10 * c.rank() + peer, at::kFloat));
        expected.push_back(at::full({out_splits.back(), 3}, 10 * peer + c.rank(), at::kFloat));
      }
      const at::Tensor want = at::cat(expected);
      at::Tensor out = at::empty(want.sizes(), want.options());
      c.all_to_all_rows(out, at::cat(in), out_splits, in_splits, "rows").wait();
      EXPECT_TRUE(at::equal(out, want));
    });
  }
}

TEST_P(Worlds, GatherScatterAndBroadcast) {
  const int world = GetParam();
  run_rank_threads(world, [&](Communicator c) {
    const at::Tensor mine = at::arange(5, at::kLong).add(5 * c.rank());
    at::Tensor all = at::empty({5 * world}, at::kLong);
    c.all_gather(all, mine, "gather").wait();
    EXPECT_TRUE(at::equal(all, at::arange(5 * world, at::kLong)));

    for (const int64_t n : {0, 1, 5}) {
      at::Tensor part = at::empty({n}, at::kFloat);
      c.reduce_scatter(part, at::arange(n * world, at::kFloat), "scatter").wait();
      EXPECT_TRUE(at::equal(part, at::arange(n, at::kFloat).add(n * c.rank()).mul(world)));
    }

    at::Tensor told = at::full({4}, c.rank(), at::kLong);
    c.broadcast(told, world - 1, "tell").wait();
    EXPECT_TRUE(at::equal(told, at::full({4}, world - 1, at::kLong)));
    c.barrier("end");
  });
}

TEST(Communicator, ManyCollectivesUnderWayAtOnce) {
  run_rank_threads(3, [&](Communicator c) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(at::full({100}, i, at::kFloat));
      works.push_back(c.all_reduce(tensors.back(), Reduction::kSum, "many"));
    }
    for (int i = 19; i >= 0; --i) {
      works[static_cast<size_t>(i)].wait();
      EXPECT_EQ(tensors[static_cast<size_t>(i)][99].item<float>(), 3 * i);
    }
  });
}

TEST(Communicator, RecordsBytesByFormulaAndTimesInOrder) {
  run_rank_threads(3, [&](Communicator c) {
    std::vector<CollectiveRecord> records;
    c.set_record_hook([&](const CollectiveRecord& record) { records.push_back(record); });
    at::Tensor tensor = at::full({300}, 1, at::kFloat);
    c.all_reduce(tensor, Reduction::kSum, "a").wait();
    at::Tensor out = at::empty({6}, at::kLong), in = at::full({6}, 1, at::kLong);
    Work work = c.all_to_all_rows(out, in, {2, 2, 2}, {2, 2, 2}, "b");
    work.wait();
    work.wait();  // a second wait records nothing
    ASSERT_EQ(records.size(), 2u);
    EXPECT_EQ(records[0].kind, "all_reduce");
    EXPECT_EQ(records[0].bytes, 2.0 * 2 / 3 * 1200);
    EXPECT_EQ(records[1].name, "b");
    EXPECT_EQ(records[1].bytes, 4 * 8);  // two peers, two rows each
    EXPECT_EQ(records[1].sequence, records[0].sequence + 1);
    for (const CollectiveRecord& record : records) {
      EXPECT_LE(record.arrival, record.start);
      EXPECT_LE(record.start, record.end);
      EXPECT_LE(record.end, steady_seconds());
      EXPECT_LE(record.arrival, record.wait_start);
      EXPECT_LE(record.wait_start, record.wait_end);
    }
  });
}

// Every kind of collective has an end that the transport noted, and that can be polled for.
TEST_P(Worlds, EveryKindIsRecordedOnceAndCanBePolled) {
  const int world = GetParam();
  run_rank_threads(world, [&](Communicator c) {
    std::vector<CollectiveRecord> records;
    c.set_record_hook([&](const CollectiveRecord& record) { records.push_back(record); });
    at::Tensor few = at::full({2}, 1, at::kFloat), many = at::full({2 * world}, 1, at::kFloat);
    const std::vector<int64_t> splits(static_cast<size_t>(world), 2);
    const auto finish = [](Work work) {
      while (!work.done()) std::this_thread::yield();
      work.wait();
      work.wait();
    };
    finish(c.all_reduce(few.clone(), Reduction::kSum, "all_reduce"));
    finish(c.all_gather(many.clone(), few, "all_gather"));
    at::Tensor part = at::empty({2}, at::kFloat);
    finish(c.reduce_scatter(part, many, "reduce_scatter"));
    EXPECT_TRUE(at::equal(part, at::full({2}, world, at::kFloat)));
    EXPECT_TRUE(at::equal(many, at::full({2 * world}, 1, at::kFloat)));  // the input stays
    finish(c.broadcast(few.clone(), 0, "broadcast"));
    finish(c.all_to_all_rows(many.clone(), many, splits, splits, "all_to_all"));
    c.barrier("barrier");
    ASSERT_EQ(records.size(), world == 1 ? 0u : 6u);
    if (world == 1) return;
    EXPECT_EQ(records[2].bytes, (world - 1.0) / world * 8 * world);
    double least = 0;
    for (const CollectiveRecord& record : records) {
      EXPECT_EQ(record.kind, record.name);
      EXPECT_LE(least, record.start);
      EXPECT_LE(record.start, record.end);
      least = record.end;
    }
  });
}

// Without a watch the transport's own error arrives, as a rank failure with the collective's name.
TEST(Communicator, APeerThatLeavesIsAnError) {
  for (const bool scatter : {false, true}) {
    run_rank_threads(2, [&](Communicator c) {
      if (c.rank() == 1) return;  // its communicator ends here
      at::Tensor tensor = at::full({3}, 1, at::kFloat), twice = at::full({6}, 1, at::kFloat);
      try {
        for (int i = 0; i < 3; ++i) {
          if (scatter) {
            c.reduce_scatter(tensor, twice, "lonely").wait();
          } else {
            c.all_reduce(tensor, Reduction::kSum, "lonely").wait();
          }
        }
        FAIL() << "no error";
      } catch (const RankFailure& error) {
        EXPECT_NE(std::string(error.what()).find("'lonely'"), std::string::npos) << error.what();
      }
    });
  }
}

TEST(Stop, AllRanksStopAtTheSameStep) {
  std::vector<int> stopped(3, -1);
  clear_stop();
  run_rank_threads(3, [&](Communicator c) {
    StopAgreement agreement(c);
    for (int step = 0; step < 200; ++step) {
      if (c.rank() == 1 && step == 5) request_stop(15);
      const Stop stop = agreement.next();
      ASSERT_NE(stop, Stop::kPeerGone);
      if (stop == Stop::kYes) {
        stopped[static_cast<size_t>(c.rank())] = step;
        break;
      }
    }
  });
  EXPECT_GE(stopped[0], 1);
  EXPECT_EQ(stopped[0], stopped[1]);
  EXPECT_EQ(stopped[0], stopped[2]);
  clear_stop();
}

TEST(Stop, WithAPeerGoneItDoesNotWaitForLong) {
  clear_stop();
  run_rank_threads(2, [&](Communicator c) {
    StopAgreement agreement(c, /*patience_seconds=*/0.5);
    EXPECT_EQ(agreement.next(), Stop::kNo);
    c.barrier("both have started");  // the signal is noted for the whole process: not before
    if (c.rank() == 1) return;
    request_stop(15);
    const double begin = steady_seconds();
    Stop stop = agreement.next();  // the first exchange may have been completed by both
    if (stop == Stop::kNo) stop = agreement.next();
    EXPECT_EQ(stop, Stop::kPeerGone);
    EXPECT_LT(steady_seconds() - begin, 10);
  });
  clear_stop();
}

/// Ends, well or badly, between the throw of a timed wait and the caller's next look at it.
class LateWork : public c10d::Work {
 public:
  explicit LateWork(std::string error) : error_(std::move(error)) {}
  bool isCompleted() override { return waits_ > 0; }
  bool wait(std::chrono::milliseconds) override {
    if (++waits_ == 1) throw std::runtime_error("Operation timed out!");
    if (!error_.empty()) throw std::runtime_error(error_);
    return true;
  }

 private:
  int waits_ = 0;
  std::string error_;
};

class LateBackend : public c10d::Backend {
 public:
  explicit LateBackend(std::string error) : Backend(0, 2), error_(std::move(error)) {}
  const std::string getBackendName() const override { return "late"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<LateWork>(error_);
  }

 private:
  std::string error_;
};

TEST(Wait, AWorkThatEndsAsItsSliceOfTimeDoesIsNoFailure) {
  Communicator c(c10::make_intrusive<LateBackend>(""), at::kCPU, "late", nullptr);
  at::Tensor x = at::full({1}, 1, at::kFloat);
  EXPECT_NO_THROW(c.all_reduce(x, Reduction::kSum, "x").wait());
}

TEST(Wait, AWorkThatFailsThenSaysWhy) {
  Communicator c(c10::make_intrusive<LateBackend>("the peer is gone"), at::kCPU, "late", nullptr);
  at::Tensor x = at::full({1}, 1, at::kFloat);
  try {
    c.all_reduce(x, Reduction::kSum, "x").wait();
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("the peer is gone"), std::string::npos);
  }
}

}  // namespace
}  // namespace tautline::comm
