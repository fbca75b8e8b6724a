// Which samples make up which step: a function of (lengths of the users, options, epoch), and of
// nothing else. No Arrow, no files, no ranks here.
//
// An epoch: the blocks of the log (its row groups) are shuffled; consecutive blocks form windows
// of at least `shuffle_window` users; the samples of a window's users are shuffled together. A log
// no larger than the window is so shuffled whole. Steps are cut from that order and may straddle
// windows; they never straddle epochs.
//
// A user's training events become samples of at most max_length tokens (a token needs a next event,
// so a sample reads one event more than it has tokens). A history of at most max_length + 1 events
// is one sample. A longer one is cut at a phase drawn by (seed, epoch, user): the part after the
// cut is one sample with the last max_length tokens as context, of which only the targets after the
// cut count, and the part before it is cut into chunks from its end. So in every epoch every
// training event but a user's first is a target exactly once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tautline/balance/deal.h"

namespace tautline::data {

enum class Holdout {
  kNone,         // every event trains
  kLeaveLastOut  // users with at least kEvaluatedLength events keep their last two for evaluation
};
inline constexpr int64_t kEvaluatedLength = 3;

/// Leading events of a user that train.
constexpr int64_t training_length(int64_t events, Holdout holdout) {
  return holdout == Holdout::kLeaveLastOut && events >= kEvaluatedLength ? events - 2 : events;
}

struct Sample {
  int64_t user = 0;     // row number in the log
  int32_t block = 0;    // block of that row
  int32_t begin = 0;    // the tokens are the user's events begin .. begin + length - 1
  int32_t length = 0;   // >= 1
  int32_t targets = 0;  // the last `targets` tokens; token j's target is event begin + j + 1
  bool operator==(const Sample&) const = default;
};

/// The samples of one user, from the end of the history to its start; none below two events.
/// phase: in [0, max_length), used where events > max_length + 1.
void append_samples(int64_t user, int32_t block, int64_t events, int64_t max_length, int64_t phase,
                    std::vector<Sample>& samples);

/// How many append_samples would append.
int64_t count_samples(int64_t events, int64_t max_length, int64_t phase);

/// All that sampling knows of a log: 4 bytes a user.
struct LogShape {
  std::vector<int32_t> lengths;         // [users] events, in row order
  std::vector<int64_t> block_begin{0};  // [blocks + 1] first row of each block
  int64_t blocks() const { return static_cast<int64_t>(block_begin.size()) - 1; }
};

struct SamplingOptions {
  Holdout holdout = Holdout::kLeaveLastOut;
  int64_t max_length = 200;
  int64_t batch = 512;       // samples a step
  int64_t batch_tokens = 0;  // 0: off; else a step closes before it passes this many tokens (but
                             // holds one sample at least)
  uint64_t seed = 1;
  int64_t shuffle_window = 1 << 20;
  int64_t base_batch = 0;  // 0: off; else base batch shuffling over kMergedSteps steps; divides
                           // batch, and excludes batch_tokens
  balance::Cost cost;      // what base batch shuffling evens out
};
inline constexpr int64_t kMergedSteps = 16;

struct Step {
  int64_t epoch = 0, index = 0;  // index inside the epoch
  bool last_of_epoch = false;
  std::vector<Sample> samples;  // the fixed set, in the order that keys dropout
};

/// The steps of one epoch, one after the other. Holds the samples of one window (24 bytes each)
/// and, with base batch shuffling, of kMergedSteps steps.
class EpochSampler {
 public:
  /// `shape` must outlive the sampler.
  EpochSampler(const LogShape& shape, const SamplingOptions& options, int64_t epoch);

  /// The next step; false at the end of the epoch.
  bool next(Step& step);
  /// Passes over steps; returns how many there were to pass.
  int64_t skip(int64_t steps);

  /// Samples of the whole epoch, wherever next() stands.
  int64_t count_samples() const;

  int64_t windows() const { return static_cast<int64_t>(window_begin_.size()) - 1; }
  int64_t window_of(const Sample& sample) const { return window_of_block_[sample.block]; }
  std::span<const int32_t> blocks_of(int64_t window) const;
  /// Windows before this one have given all their samples to steps that next() has returned.
  int64_t open_window() const;

 private:
  int64_t phase(int64_t user, int64_t events) const;
  int64_t samples_in(int64_t window) const;
  void generate(int64_t window);
  bool refill();
  void drop(int64_t samples);
  void take(Step& step);
  void merge();

  const LogShape& shape_;
  const SamplingOptions options_;
  const int64_t epoch_;
  std::vector<int32_t> block_order_;
  std::vector<int64_t> window_begin_;  // [windows + 1] into block_order_
  std::vector<int32_t> window_of_block_;
  int64_t next_window_ = 0, next_step_ = 0;
  std::vector<Sample> pending_;  // of window next_window_ - 1
  size_t position_ = 0;
  std::vector<Step> merged_;   // base batch shuffling: steps ready, the next one last
  int64_t merged_window_ = 0;  // the earliest window that a step of merged_ may hold
};

/// Steps of an epoch; without batch_tokens from the number of samples alone.
int64_t count_steps(const LogShape& shape, const SamplingOptions& options, int64_t epoch);

/// `count` of the rows whose length is at least kEvaluatedLength, drawn by seed and sorted; 0: all.
std::vector<int64_t> draw_evaluated_users(const LogShape& shape, uint64_t seed, int64_t count);

}  // namespace tautline::data
