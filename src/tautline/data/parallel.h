// A loop whose turns are taken by a few threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tautline::data {

/// task(i) for every i in [0, count) on at most `threads` threads, the caller's among them. No turn
/// starts after `stop` was set or a task has thrown; of the errors, the one of the lowest turn is
/// thrown here.
template <class Task>
void parallel_for(int64_t count, int threads, const std::atomic<bool>& stop, Task task) {
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  int64_t failed_turn = INT64_MAX;
  std::exception_ptr failure;
  const auto work = [&] {
    for (;;) {
      const int64_t turn = next.fetch_add(1);
      if (turn >= count || stop) return;
      try {
        task(turn);
      } catch (...) {
        const std::lock_guard lock(mutex);
        next = count;
        if (turn < failed_turn) {
          failed_turn = turn;
          failure = std::current_exception();
        }
      }
    }
  };
  std::vector<std::thread> helpers;
  for (int64_t i = 1; i < threads && i < count; ++i) helpers.emplace_back(work);
  work();
  for (auto& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tautline::data
