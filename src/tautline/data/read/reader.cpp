#include "tautline/data/read/reader.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "tautline/base/error.h"
#include "tautline/data/read/assemble.h"
#include "tautline/data/read/built_log.h"
#include "tautline/data/read/step_planner.h"
#include "tautline/data/read/window_store.h"

namespace tautline::data {
namespace {

struct Ready {
  Batch batch;
  Cursor after;
};

/// What one run of the background thread hands over, up to `prefetch` batches ahead.
class ReadyQueue {
 public:
  explicit ReadyQueue(size_t capacity) : capacity_(capacity) {}

  /// False once the queue was closed.
  bool push(Ready ready) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closed_ || batches_.size() < capacity_; });
    if (closed_) return false;
    batches_.push_back(std::move(ready));
    changed_.notify_all();
    return true;
  }
  /// Throws the error of the producer after the batches that came before it.
  Ready pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_ || !batches_.empty(); });
    if (batches_.empty()) std::rethrow_exception(failure_);
    Ready ready = std::move(batches_.front());
    batches_.pop_front();
    changed_.notify_all();
    return ready;
  }
  void fail(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    changed_.notify_all();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Ready> batches_;
  std::exception_ptr failure_;
  bool closed_ = false;
};

class LogReader : public Reader {
 public:
  explicit LogReader(const ReaderOptions& options)
      : options_(options),
        sampling_(sampling_options(options)),
        choice_(choose_columns(options.categorical, options.dense, options.labels)),
        log_(options.log, choice_.columns, options.workers),
        resident_(log_.decoded_bytes() <= options.cache_bytes) {
    start();
  }
  ~LogReader() override { stop(); }

  Batch next() override {
    const auto begin = std::chrono::steady_clock::now();
    Ready ready = queue_->pop();
    waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    cursor_ = ready.after;
    return std::move(ready.batch);
  }
  Cursor cursor() const override { return cursor_; }
  void seek(const Cursor& cursor) override {
    stop();
    cursor_ = cursor;
    start();
  }
  int64_t steps_per_epoch(int64_t epoch) override {
    const auto [found, inserted] = steps_.try_emplace(epoch, 0);
    if (inserted) found->second = count_steps(log_.shape(), sampling_, epoch);
    return found->second;
  }
  double seconds_waited() const override { return waited_; }

 private:
  void start() {
    stopping_ = false;
    queue_.emplace(static_cast<size_t>(options_.prefetch));
    producer_ = std::thread([this, cursor = cursor_] {
      try {
        produce(cursor);
      } catch (...) {
        queue_->fail(std::current_exception());
      }
    });
  }
  void stop() {
    stopping_ = true;
    queue_->close();
    producer_.join();
  }

  void check_samples() const {
    for (const int32_t length : log_.shape().lengths)
      if (training_length(length, options_.holdout) >= 2) return;
    throw user_error(log_.text(), " has nothing to train on: none of its ", log_.statistics().users,
                     " users has two training events",
                     options_.holdout == Holdout::kLeaveLastOut
                         ? " (the last two of a user with three or more are held out)"
                         : "");
  }

  void produce(const Cursor& cursor) {
    check_samples();
    StepPlanner planner(log_.shape(), options_, cursor);
    if (resident_)
      produce_resident(planner);
    else
      produce_by_window(planner);
  }

  bool hand_over(PlannedStep& step, const std::vector<Located>& places) {
    const Cursor next = after(step);
    assemble(step.samples, places, step.index, choice_.roles, step.batch);
    return queue_->push({std::move(step.batch), next});
  }

  void produce_resident(StepPlanner& planner) {
    if (blocks_.empty()) {
      auto blocks = decode_all(log_, options_.workers, stopping_);
      if (stopping_) return;
      blocks_ = std::move(blocks);
    }
    std::vector<Located> places;
    do {
      PlannedStep step = planner.next();
      places.clear();
      for (const Sample& s : step.samples)
        places.push_back({&blocks_[s.block], s.user - log_.shape().block_begin[s.block]});
      if (!hand_over(step, places)) return;
    } while (!stopping_);
  }

  void produce_by_window(StepPlanner& planner) {
    WindowStore store(log_, options_.workers, stopping_);
    std::deque<PlannedStep> planned;
    int64_t started = 0;  // windows before this one
    const auto start_until = [&](int64_t window) {
      for (; started <= window; ++started) {
        while (planner.open_window() <= started) {
          planned.push_back(planner.next());
          store.expect(planned.back());
        }
        store.start(started);
      }
    };
    std::vector<Located> places;
    while (!stopping_) {
      if (planned.empty()) start_until(started);
      if (planned.empty()) continue;  // a window without samples
      PlannedStep& step = planned.front();
      places.clear();
      for (size_t i = 0; i < step.samples.size(); ++i) {
        start_until(step.windows[i] + 1);  // and the next one, ahead of its need
        places.push_back(store.locate(step.samples[i], step.windows[i]));
        if (stopping_) return;
      }
      if (!hand_over(step, places)) return;
      store.release(step);
      planned.pop_front();
    }
  }

  const ReaderOptions options_;
  const SamplingOptions sampling_;
  const ColumnChoice choice_;
  const BuiltLog log_;
  const bool resident_;
  std::vector<EventBlock> blocks_;  // of a resident log
  std::map<int64_t, int64_t> steps_;
  Cursor cursor_;
  double waited_ = 0;
  std::atomic<bool> stopping_{false};
  std::optional<ReadyQueue> queue_;
  std::thread producer_;
};

}  // namespace

std::unique_ptr<Reader> open_reader(const ReaderOptions& options) {
  return std::make_unique<LogReader>(options);
}

}  // namespace tautline::data
