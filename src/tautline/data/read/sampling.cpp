#include "tautline/data/read/sampling.h"

#include <algorithm>
#include <numeric>

#include "tautline/balance/base_batch.h"
#include "tautline/base/error.h"
#include "tautline/base/random.h"

namespace tautline::data {
namespace {

// The streams of one seed: (epoch, 0) orders the blocks, (epoch, w + 1) the samples of window w.
Random shuffle_stream(uint64_t seed, int64_t epoch, int64_t part) {
  return Random(seed, RandomUse::kShuffle,
                static_cast<uint64_t>(epoch) << 32 | static_cast<uint32_t>(part));
}

// Which users are evaluated; no epoch is that large.
constexpr int64_t kEvaluationEpoch = 0xFFFFFFFF;

}  // namespace

void append_samples(int64_t user, int32_t block, int64_t events, int64_t max_length, int64_t phase,
                    std::vector<Sample>& samples) {
  const auto append = [&](int64_t begin, int64_t end, int64_t targets) {  // events [begin, end)
    samples.push_back({user, block, static_cast<int32_t>(begin),
                       static_cast<int32_t>(end - begin - 1), static_cast<int32_t>(targets)});
  };
  const int64_t window = max_length + 1;
  int64_t end = events;
  if (events > window && phase > 0) {
    append(events - window, events, phase);  // the tail, with the past as context
    end = events - phase;
  }
  while (end >= 2) {
    const int64_t begin = std::max<int64_t>(0, end - window);
    append(begin, end, end - begin - 1);
    end = begin + 1;  // the first event read here is the next chunk's last target
  }
}

int64_t count_samples(int64_t events, int64_t max_length, int64_t phase) {
  if (events < 2) return 0;
  if (events <= max_length + 1) return 1;
  return (phase > 0) + (events - phase - 1 + max_length - 1) / max_length;
}

EpochSampler::EpochSampler(const LogShape& shape, const SamplingOptions& options, int64_t epoch)
    : shape_(shape), options_(options), epoch_(epoch) {
  TAUTLINE_INVARIANT(options.batch >= 1 && options.max_length >= 1 && options.shuffle_window >= 1,
                     "batch " << options.batch << ", max_length " << options.max_length
                              << ", shuffle_window " << options.shuffle_window);
  TAUTLINE_INVARIANT(options.base_batch == 0 ||
                         (options.batch % options.base_batch == 0 && options.batch_tokens == 0),
                     "base_batch " << options.base_batch << ", batch " << options.batch);
  const auto order = permutation(shape.blocks(), shuffle_stream(options.seed, epoch, 0));
  block_order_.assign(order.begin(), order.end());
  window_of_block_.resize(shape.blocks());
  window_begin_ = {0};
  int64_t users = 0;
  for (int64_t i = 0; i < shape.blocks(); ++i) {
    const int32_t block = block_order_[i];
    window_of_block_[block] = static_cast<int32_t>(window_begin_.size()) - 1;
    users += shape.block_begin[block + 1] - shape.block_begin[block];
    if (users >= options.shuffle_window || i + 1 == shape.blocks()) {
      window_begin_.push_back(i + 1);
      users = 0;
    }
  }
}

std::span<const int32_t> EpochSampler::blocks_of(int64_t window) const {
  return std::span(block_order_)
      .subspan(window_begin_[window], window_begin_[window + 1] - window_begin_[window]);
}

int64_t EpochSampler::open_window() const {
  if (!merged_.empty()) return merged_window_;
  return position_ < pending_.size() ? next_window_ - 1 : next_window_;
}

int64_t EpochSampler::phase(int64_t user, int64_t events) const {
  if (events <= options_.max_length + 1) return 0;
  Random random(options_.seed, RandomUse::kChunkPhase,
                static_cast<uint64_t>(epoch_) << 40 | static_cast<uint64_t>(user));
  return static_cast<int64_t>(random.below(static_cast<uint64_t>(options_.max_length)));
}

int64_t EpochSampler::samples_in(int64_t window) const {
  int64_t samples = 0;
  for (const int32_t block : blocks_of(window))
    for (int64_t user = shape_.block_begin[block]; user < shape_.block_begin[block + 1]; ++user) {
      const int64_t events = training_length(shape_.lengths[user], options_.holdout);
      samples += data::count_samples(events, options_.max_length, phase(user, events));
    }
  return samples;
}

int64_t EpochSampler::count_samples() const {
  int64_t samples = 0;
  for (int64_t window = 0; window < windows(); ++window) samples += samples_in(window);
  return samples;
}

void EpochSampler::generate(int64_t window) {
  pending_.clear();
  position_ = 0;
  for (const int32_t block : blocks_of(window))
    for (int64_t user = shape_.block_begin[block]; user < shape_.block_begin[block + 1]; ++user) {
      const int64_t events = training_length(shape_.lengths[user], options_.holdout);
      append_samples(user, block, events, options_.max_length, phase(user, events), pending_);
    }
  Random random = shuffle_stream(options_.seed, epoch_, window + 1);
  for (size_t i = pending_.size(); i > 1; --i)
    std::swap(pending_[i - 1], pending_[random.below(i)]);
}

bool EpochSampler::refill() {  // false at the end of the epoch
  while (position_ == pending_.size()) {
    if (next_window_ == windows()) return false;
    generate(next_window_++);
  }
  return true;
}

void EpochSampler::drop(int64_t samples) {
  while (samples > 0) {
    if (position_ == pending_.size()) {
      if (next_window_ == windows()) return;
      const int64_t ahead = samples_in(next_window_);
      if (ahead <= samples) {  // the whole window: no need to shuffle it
        samples -= ahead;
        ++next_window_;
        continue;
      }
      generate(next_window_++);
    }
    const int64_t here = std::min<int64_t>(samples, pending_.size() - position_);
    position_ += here;
    samples -= here;
  }
}

void EpochSampler::take(Step& step) {
  int64_t tokens = 0;
  while (static_cast<int64_t>(step.samples.size()) < options_.batch && refill()) {
    const Sample& sample = pending_[position_];
    tokens += sample.length;
    if (options_.batch_tokens > 0 && tokens > options_.batch_tokens && !step.samples.empty()) break;
    step.samples.push_back(sample);
    ++position_;
  }
}

void EpochSampler::merge() {
  merged_window_ = open_window();
  std::vector<Step> steps;
  while (static_cast<int64_t>(steps.size()) < kMergedSteps && refill()) take(steps.emplace_back());
  std::vector<Step> whole = steps;
  if (!whole.empty() && static_cast<int64_t>(whole.back().samples.size()) < options_.batch)
    whole.pop_back();  // the epoch's short last step stays as it is

  const int64_t per_step = options_.batch / options_.base_batch, size = options_.base_batch;
  std::vector<double> costs(whole.size() * per_step, 0.0);
  for (size_t b = 0; b < costs.size(); ++b)
    for (int64_t i = 0; i < size; ++i)
      costs[b] += options_.cost.of(whole[b / per_step].samples[b % per_step * size + i].length);
  if (!whole.empty()) {
    const auto order = balance::merge_base_batches(costs, static_cast<int64_t>(whole.size()));
    for (size_t b = 0; b < order.size(); ++b) {
      const auto from = whole[order[b] / per_step].samples.begin() + order[b] % per_step * size;
      std::copy(from, from + size,
                steps[b / per_step].samples.begin() + static_cast<int64_t>(b) % per_step * size);
    }
  }
  merged_.assign(std::make_move_iterator(steps.rbegin()), std::make_move_iterator(steps.rend()));
}

bool EpochSampler::next(Step& step) {
  step.samples.clear();
  if (options_.base_batch > 0) {
    if (merged_.empty()) merge();
    if (!merged_.empty()) {
      step.samples = std::move(merged_.back().samples);
      merged_.pop_back();
    }
  } else {
    take(step);
  }
  if (step.samples.empty()) return false;
  step.epoch = epoch_;
  step.index = next_step_++;
  step.last_of_epoch = merged_.empty() && !refill();
  return true;
}

int64_t EpochSampler::skip(int64_t steps) {
  const int64_t first = next_step_;
  if (options_.batch_tokens == 0 && merged_.empty()) {
    const int64_t unit = options_.base_batch > 0 ? kMergedSteps : 1;
    const int64_t whole = steps / unit * unit;
    const int64_t left = count_steps(shape_, options_, epoch_) - next_step_;
    if (whole > left) {
      next_step_ += left;
      next_window_ = windows();
      pending_.clear();
      position_ = 0;
      return left;
    }
    drop(whole * options_.batch);
    next_step_ += whole;
    steps -= whole;
  }
  Step step;
  while (steps-- > 0 && next(step)) {
  }
  return next_step_ - first;
}

int64_t count_steps(const LogShape& shape, const SamplingOptions& options, int64_t epoch) {
  EpochSampler sampler(shape, options, epoch);
  if (options.batch_tokens > 0) return sampler.skip(INT64_MAX);
  return (sampler.count_samples() + options.batch - 1) / options.batch;
}

std::vector<int64_t> draw_evaluated_users(const LogShape& shape, uint64_t seed, int64_t count) {
  std::vector<int64_t> users;
  for (size_t row = 0; row < shape.lengths.size(); ++row)
    if (shape.lengths[row] >= kEvaluatedLength) users.push_back(static_cast<int64_t>(row));
  if (count <= 0 || count >= static_cast<int64_t>(users.size())) return users;
  Random random = shuffle_stream(seed, kEvaluationEpoch, 0);
  for (int64_t i = 0; i < count; ++i)  // a partial Fisher-Yates: the first `count` are the draw
    std::swap(users[i], users[i + random.below(users.size() - i)]);
  users.resize(count);
  std::sort(users.begin(), users.end());
  return users;
}

}  // namespace tautline::data
