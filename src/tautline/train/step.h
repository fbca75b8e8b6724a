// One training step, as a sequence that can be read:
//
//   ids to the ranks that hold their rows -> look up -> rows back -> forward -> backward (dense
//   gradients are summed over ranks meanwhile) -> row gradients to their ranks, summed, applied ->
//   dense optimiser
//
// The loss comes back one call later, so that a step never waits for a number that only people
// read.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>

#include "tautline/comm/communicator.h"
#include "tautline/data/read/batch.h"
#include "tautline/dense/adamw.h"
#include "tautline/dense/bucketed_gradients.h"
#include "tautline/train/network.h"
#include "tautline/train/phase_clock.h"
#include "tautline/train/recorder.h"

namespace tautline::train {

/// What a step says about itself, once it is known.
struct StepReport {
  int64_t step = 0;
  // Over all ranks:
  double loss = 0;
  double tokens = 0;
  double pairs = 0;  // of attention, as workload/describe.h counts them
};

struct StepOptions {
  dense::AdamWOptions dense;
  DenseGradientPlan dense_gradient;
};

class Step {
 public:
  /// `world`: the losses' and reports' collectives; `dense`: the gradients'.
  Step(Network& network, const StepOptions& options, comm::Communicator world,
       comm::Communicator dense, Recorder& recorder);

  /// All ranks, with their parts of the same step.
  void run(const data::Batch& batch);

  /// Reports in order. At most `ahead` steps stay unreported: 0 waits for all of them.
  std::optional<StepReport> next_report(size_t ahead);

  dense::AdamW& optimizer() { return optimizer_; }

  /// GPUs: waits for the device and records the phases so far.
  void flush_phases() { clock_.flush(); }

 private:
  using Routes = std::map<std::string, embedding::Route>;
  struct Pending {
    int64_t step;
    at::Tensor values;  // [3] FP64: loss, tokens, pairs
    at::Tensor host;
    comm::Work sum;
    std::shared_ptr<void> copied;  // an event of the device, CUDA only
  };

  models::Rows look_up(const models::Inputs& inputs, Routes& routes, int64_t step);
  void update_tables(const models::Rows& rows, const models::Loss& loss, Routes& routes,
                     int64_t step);
  void start_report(const data::Batch& batch, const at::Tensor& loss);

  Network& network_;
  StepOptions options_;
  comm::Communicator world_;
  PhaseClock clock_;
  dense::BucketedGradients gradients_;
  dense::AdamW optimizer_;
  std::deque<Pending> pending_;
};

}  // namespace tautline::train
