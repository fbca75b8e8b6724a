// The reader: a built log, sharded over ranks and epochs, as jagged batches.
//
// Which samples make up step k is a function of (log, seed, epoch, batch) alone: users are shuffled
// per epoch, histories longer than max_length + 1 are cut into chunks at a phase drawn by (seed,
// epoch, user), samples are taken in that order, and balance/ deals the step's fixed set to ranks
// by length. So the samples of a step are the same on any number of ranks, and each rank knows
// every rank's load without talking to anyone. sampling.h has the rules.
//
// Memory of a rank: 4 bytes a user; then either the whole log decoded (up to cache_bytes), or, of
// two to three windows of shuffle_window users, the events of the rank's own samples.
//
// Speed (bench/reader.cpp): about 10^8 tokens/s a core from a decoded log. Window by window every
// rank decodes every row group, some 3 * 10^7 events/s a core: on many fast ranks the tokens/s of
// all ranks together over that figure are the `workers` that a rank needs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tautline/balance/deal.h"
#include "tautline/data/read/batch.h"
#include "tautline/data/read/sampling.h"
#include "tautline/plan/plan.h"
#include "tautline/workload/workload.h"

namespace tautline::data {

enum class Split { kValidation, kTest };

struct ReaderOptions {
  std::string log;  // folder or Arrow file system URI
  Holdout holdout = Holdout::kLeaveLastOut;
  std::vector<std::string> categorical, dense, labels;  // per-event columns that the model reads
  int64_t max_length = 200;                             // tokens of a sample
  int64_t batch = 512;                                  // samples a step over all ranks
  int64_t batch_tokens = 0;  // 0: off; else a step closes before it passes this many tokens
  uint64_t seed = 1;
  int rank = 0, world = 1;
  int workers = 1;                   // threads that decode; the batches are the same for any number
  int prefetch = 4;                  // batches ready ahead
  int64_t shuffle_window = 1 << 20;  // users shuffled together
  BalancePlan balance;
  balance::Cost cost;  // of a sample, for the deal and for base batch shuffling
  // A log that takes no more than this decoded is decoded once and kept; a larger one is decoded
  // window by window.
  int64_t cache_bytes = 1LL << 30;
};

/// Where training goes on: after `step` steps in all, `step_in_epoch` of them in `epoch`.
struct Cursor {
  int64_t epoch = 0, step_in_epoch = 0, step = 0;
  bool operator==(const Cursor&) const = default;
};

/// Reads OUT/workload.yaml. Errors: a log that is missing, unfinished or of another format.
LogStatistics read_log_statistics(const std::string& log);

class Reader {
 public:
  virtual ~Reader() = default;
  /// The next batch of this rank (possibly with no samples of its own); epochs follow each other
  /// without end.
  virtual Batch next() = 0;
  virtual Cursor cursor() const = 0;  // of the next batch
  virtual void seek(const Cursor&) = 0;
  virtual int64_t steps_per_epoch(int64_t epoch) = 0;
  /// By next(), in all: 0 if the reader is never the bottleneck.
  virtual double seconds_waited() const = 0;
};

/// Users with at least three events; at most `users` of them, drawn by seed (0: all). Each call
/// takes the next `batch` of them, over all ranks and in row order, and deals them to ranks by
/// length: so every rank gets the same number of calls that return true, and a batch may be empty.
class EvaluationReader {
 public:
  virtual ~EvaluationReader() = default;
  virtual bool next(EvaluationBatch& batch) = 0;
};

/// Errors (UserError): those of read_log_statistics, a column that is missing (with the nearest
/// name), a part that is missing, damaged or cut short, options that cannot be. What shows only
/// when events are decoded (damage inside a part, an id beyond its vocabulary) is thrown by next(),
/// and so is a log without any training sample.
std::unique_ptr<Reader> open_reader(const ReaderOptions& options);
std::unique_ptr<EvaluationReader> open_evaluation(const ReaderOptions& options, Split split,
                                                  int64_t users, int64_t batch);

}  // namespace tautline::data
