// From samples to work: the endless sequence of steps over epochs, each dealt to ranks, with what
// one rank has to read of it. No Arrow, no threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tautline/data/read/reader.h"
#include "tautline/data/read/sampling.h"

namespace tautline::data {

/// A step as one rank sees it before any event is read.
struct PlannedStep {
  Batch batch;                   // all that concerns every rank; no samples yet
  Cursor cursor;                 // of this step
  std::vector<Sample> samples;   // [S] this rank's
  std::vector<int64_t> index;    // [S] inside the step's fixed set
  std::vector<int64_t> windows;  // [S] where their events are read, counted over epochs
};

/// The options as sampling wants them. Errors (UserError): values that cannot be.
SamplingOptions sampling_options(const ReaderOptions& options);

class StepPlanner {
 public:
  /// Continues at a cursor. `shape` must outlive it and have a sample to train on. Errors
  /// (UserError): a cursor beyond the end of its epoch, which is that of another log.
  StepPlanner(const LogShape& shape, const ReaderOptions& options, const Cursor& cursor);

  PlannedStep next();
  /// Windows before this one have given all their samples to steps that next() has returned.
  int64_t open_window() const { return first_window_ + sampler_->open_window(); }

 private:
  void start(int64_t epoch);

  const LogShape& shape_;
  const SamplingOptions sampling_;
  const BalancePlan::Deal deal_;
  const int rank_, world_;
  Cursor cursor_;
  std::unique_ptr<EpochSampler> sampler_;
  int64_t first_window_ = 0;  // of this epoch, counted over epochs
};

/// Where the step after this one begins.
Cursor after(const PlannedStep& step);

}  // namespace tautline::data
