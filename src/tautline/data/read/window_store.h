// Decoded events by window: what lets a reader shuffle users over many row groups in bounded
// memory. A window is loaded once all steps that touch it are planned, keeps the events of this
// rank's users only, and is dropped after its last sample was read.
//
// A log that fits into the cache is decoded whole instead, once, and stays.
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <map>
#include <vector>

#include "tautline/data/read/assemble.h"
#include "tautline/data/read/built_log.h"
#include "tautline/data/read/step_planner.h"

namespace tautline::data {

/// The whole log, block by block. `stop` ends the decoding early (the result is then useless).
std::vector<EventBlock> decode_all(const BuiltLog& log, int threads, const std::atomic<bool>& stop);

class WindowStore {
 public:
  /// log and stop must outlive the store; `threads` decode one window.
  WindowStore(const BuiltLog& log, int threads, const std::atomic<bool>& stop)
      : log_(log), threads_(threads), stop_(stop) {}
  ~WindowStore();

  /// Notes what a planned step needs. Every step, before any of its windows is started.
  void expect(const PlannedStep& step);
  /// Begins to load a window in the background, if a sample needs it. All steps that touch it have
  /// been expected.
  void start(int64_t window);
  /// Where the events of a sample are; waits for its window. Errors: those of BuiltLog::decode.
  Located locate(const Sample& sample, int64_t window);
  /// Says that the samples of a step were copied.
  void release(const PlannedStep& step);

 private:
  using Blocks = std::map<int32_t, EventBlock>;
  struct Window {
    int64_t samples_left = 0;
    std::map<int32_t, std::vector<uint8_t>> keep;  // by block: one flag a row
    std::future<Blocks> loading;
    Blocks blocks;
  };
  const BuiltLog& log_;
  const int threads_;
  const std::atomic<bool>& stop_;
  std::map<int64_t, Window> windows_;
};

}  // namespace tautline::data
