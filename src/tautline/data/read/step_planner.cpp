#include "tautline/data/read/step_planner.h"

#include <algorithm>

#include "tautline/base/error.h"

namespace tautline::data {

SamplingOptions sampling_options(const ReaderOptions& options) {
  const auto at_least = [](const char* name, int64_t value, int64_t lowest) {
    if (value < lowest)
      throw user_error("'", name, "' is ", value, ", it must be at least ", lowest);
  };
  at_least("max_length", options.max_length, 1);
  at_least("batch", options.batch, 1);
  at_least("batch_tokens", options.batch_tokens, 0);
  at_least("shuffle_window", options.shuffle_window, 1);
  at_least("workers", options.workers, 1);
  at_least("prefetch", options.prefetch, 1);
  const int64_t base_batch = options.balance.base_batch;
  at_least("base_batch", base_batch, 0);
  if (base_batch > 0 && options.batch % base_batch != 0)
    throw user_error("'base_batch' is ", base_batch, ", which does not divide 'batch', ",
                     options.batch);
  if (base_batch > 0 && options.batch_tokens > 0)
    throw user_error(
        "'base_batch' is ", base_batch, " and 'batch_tokens' is ", options.batch_tokens,
        ": base batches need steps of a fixed number of samples, set one of them to 0");
  TAUTLINE_INVARIANT(options.world >= 1 && options.rank >= 0 && options.rank < options.world,
                     "rank " << options.rank << " of " << options.world);
  SamplingOptions sampling;
  sampling.holdout = options.holdout;
  sampling.max_length = options.max_length;
  sampling.batch = options.batch;
  sampling.batch_tokens = options.batch_tokens;
  sampling.seed = options.seed;
  sampling.shuffle_window = options.shuffle_window;
  sampling.base_batch = base_batch;
  sampling.cost = options.cost;
  return sampling;
}

StepPlanner::StepPlanner(const LogShape& shape, const ReaderOptions& options, const Cursor& cursor)
    : shape_(shape),
      sampling_(sampling_options(options)),
      deal_(options.balance.deal),
      rank_(options.rank),
      world_(options.world),
      cursor_(cursor) {
  start(cursor.epoch);
  const int64_t passed = sampler_->skip(cursor.step_in_epoch);
  if (passed < cursor.step_in_epoch)
    throw user_error("cannot go on after step ", cursor.step_in_epoch, " of epoch ", cursor.epoch,
                     ", which has ", passed,
                     " steps: the log, its holdout or the batch is not the one of that run");
}

void StepPlanner::start(int64_t epoch) {
  sampler_ = std::make_unique<EpochSampler>(shape_, sampling_, epoch);
}

PlannedStep StepPlanner::next() {
  Step step;
  while (!sampler_->next(step)) {
    first_window_ += sampler_->windows();
    cursor_ = {cursor_.epoch + 1, 0, cursor_.step};
    start(cursor_.epoch);
  }
  std::vector<int64_t> lengths;
  lengths.reserve(step.samples.size());
  for (const Sample& s : step.samples) lengths.push_back(s.length);
  const auto deal = deal_ == BalancePlan::Deal::kByLength
                        ? balance::deal_by_length(lengths, world_, sampling_.cost)
                        : balance::deal_in_order(static_cast<int64_t>(lengths.size()), world_);

  PlannedStep planned;
  planned.cursor = cursor_;
  Batch& batch = planned.batch;
  batch.step = cursor_.step;
  batch.epoch = cursor_.epoch;
  batch.last_of_epoch = step.last_of_epoch;
  batch.global_samples = static_cast<int64_t>(step.samples.size());
  batch.rank_tokens.assign(world_, 0);
  for (size_t i = 0; i < step.samples.size(); ++i) {
    const Sample& s = step.samples[i];
    batch.global_tokens += s.length;
    batch.global_targets += s.targets;
    batch.rank_tokens[deal[i]] += s.length;
    if (deal[i] != rank_) continue;
    planned.samples.push_back(s);
    planned.index.push_back(static_cast<int64_t>(i));
    planned.windows.push_back(first_window_ + sampler_->window_of(s));
  }
  ++cursor_.step_in_epoch;
  ++cursor_.step;
  return planned;
}

Cursor after(const PlannedStep& step) {
  if (step.batch.last_of_epoch) return {step.cursor.epoch + 1, 0, step.cursor.step + 1};
  return {step.cursor.epoch, step.cursor.step_in_epoch + 1, step.cursor.step + 1};
}

}  // namespace tautline::data
