#include "tautline/data/read/window_store.h"

#include <utility>

#include "tautline/base/error.h"
#include "tautline/data/parallel.h"

namespace tautline::data {

std::vector<EventBlock> decode_all(const BuiltLog& log, int threads,
                                   const std::atomic<bool>& stop) {
  std::vector<EventBlock> blocks(log.shape().blocks());
  parallel_for(log.shape().blocks(), threads, stop,
               [&](int64_t block) { blocks[block] = log.decode(block); });
  return blocks;
}

WindowStore::~WindowStore() {
  for (auto& [number, window] : windows_)
    if (window.loading.valid()) window.loading.wait();
}

void WindowStore::expect(const PlannedStep& step) {
  const LogShape& shape = log_.shape();
  for (size_t i = 0; i < step.samples.size(); ++i) {
    const Sample& sample = step.samples[i];
    Window& window = windows_[step.windows[i]];
    ++window.samples_left;
    auto& keep = window.keep[sample.block];
    keep.resize(shape.block_begin[sample.block + 1] - shape.block_begin[sample.block], 0);
    keep[sample.user - shape.block_begin[sample.block]] = 1;
  }
}

void WindowStore::start(int64_t number) {
  const auto found = windows_.find(number);
  if (found == windows_.end() || found->second.keep.empty()) return;
  // The task owns the flags: `keep` is empty from here on, which says that the window was started.
  auto keep = std::exchange(found->second.keep, {});
  found->second.loading =
      std::async(std::launch::async, [this, keep = std::move(keep)]() -> Blocks {
        Blocks blocks;
        std::vector<std::pair<int32_t, EventBlock*>> tasks;
        for (const auto& [block, flags] : keep) tasks.emplace_back(block, &blocks[block]);
        parallel_for(static_cast<int64_t>(tasks.size()), threads_, stop_, [&](int64_t task) {
          const auto& [block, decoded] = tasks[task];
          *decoded = log_.decode(block, keep.at(block));
        });
        return blocks;
      });
}

Located WindowStore::locate(const Sample& sample, int64_t number) {
  Window& window = windows_.at(number);
  if (window.loading.valid()) window.blocks = window.loading.get();
  return {&window.blocks.at(sample.block), sample.user - log_.shape().block_begin[sample.block]};
}

void WindowStore::release(const PlannedStep& step) {
  for (const int64_t number : step.windows) {
    const auto window = windows_.find(number);
    TAUTLINE_INVARIANT(window != windows_.end() && window->second.samples_left > 0,
                       "window " << number << " has no samples left");
    if (--window->second.samples_left == 0 && window->second.keep.empty()) windows_.erase(window);
  }
}

}  // namespace tautline::data
