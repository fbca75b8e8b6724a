// The next few event batches, decoded by a thread of their own while the caller works.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "tautline/data/build/events.h"

namespace tautline::data {

class PrefetchedEvents {
 public:
  explicit PrefetchedEvents(std::unique_ptr<EventSource> source)
      : source_(std::move(source)), thread_([this] { read(); }) {}

  ~PrefetchedEvents() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  /// False at the end; throws what the reading threw, after the batches before it.
  bool next(EventBatch& batch) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !batches_.empty() || done_; });
    if (batches_.empty()) {
      if (error_) std::rethrow_exception(error_);
      return false;
    }
    batch = std::move(batches_.front());
    batches_.pop_front();
    changed_.notify_all();
    return true;
  }

  double share_read() const { return source_->share_read(); }

 private:
  static constexpr size_t kAhead = 4;

  void read() {
    try {
      for (EventBatch batch; source_->next(batch);) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return batches_.size() < kAhead || stop_; });
        if (stop_) return;
        batches_.push_back(std::move(batch));
        changed_.notify_all();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

  std::unique_ptr<EventSource> source_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<EventBatch> batches_;
  bool stop_ = false, done_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tautline::data
