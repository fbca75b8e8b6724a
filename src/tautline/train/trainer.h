// A run from its first step to its report: train, evaluate, checkpoint, stop, resume.
//
// All ranks run the same code and take the same decisions: what decides (a metric, a signal, the
// cursor) has been summed or agreed over ranks. Only rank 0 writes for people.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>

#include "tautline/base/log.h"
#include "tautline/comm/mesh.h"
#include "tautline/comm/stop.h"
#include "tautline/data/read/reader.h"
#include "tautline/train/checkpoint/checkpoint_writer.h"
#include "tautline/train/evaluate.h"
#include "tautline/train/job.h"
#include "tautline/train/metric_log.h"
#include "tautline/train/network.h"
#include "tautline/train/recorder.h"
#include "tautline/train/step.h"
#include "tautline/train/throughput.h"
#include "tautline/train/unwritten.h"

namespace tautline::train {

/// What a run came to; the same on every rank.
struct RunResult {
  data::Cursor cursor;       // of the next batch
  int64_t steps = 0;         // of this process: without those before a resume
  double loss = 0;           // of the last step
  bool interrupted = false;  // by a signal, with a checkpoint
  bool stopped_early = false;
  int64_t best_step = -1;  // of the best validation, where early stopping watches one
  std::optional<EvaluationResult> test;
  Rates rates;
  double mfu = 0;                    // of the device's bf16 peak; 0: not known, or no GPU
  double exposed_communication = 0;  // share of the steps, mean over ranks (timeline/activity.h)
  std::vector<std::pair<std::string, double>> phases;  // shares of rank 0's step time
  std::vector<double> rank_tokens;                     // over `steps`, by rank
  double reader_waited = 0;  // share of the step time in which it waited for the reader
  Unwritten unwritten;       // rank 0: what of the end is not in metrics.jsonl or TensorBoard
};

class Trainer {
 public:
  Trainer(const Job& job, bool resume, comm::Mesh& mesh, const comm::Communicator& side,
          at::Device device, const Logger& log);
  ~Trainer();

  RunResult run();
  const Recorder& recorder() const { return recorder_; }

 private:
  void resume_latest();
  bool done();
  data::Batch next_batch();
  void train_one(const data::Batch& batch, double start);
  void take_reports(size_t ahead);
  void flush_device_records();
  bool evaluation_due();       // at the step that has just ended
  bool evaluate_validation();  // true: a new best
  void check_weights();
  std::string last_saved() const;
  void save();
  EvaluationResult evaluate_split(data::Split split);
  void restore_best();
  void write(const std::string& kind, int64_t steps_done, int64_t epochs_done,
             std::vector<std::pair<std::string, double>> values);
  void record_collectives(comm::Communicator communicator);
  RunResult result() const;

  Job job_;
  comm::Mesh& mesh_;
  Logger log_;
  Recorder recorder_;
  comm::Communicator world_, tables_group_, dense_group_;
  std::unique_ptr<data::Reader> reader_;
  Network network_;
  Step step_;
  std::shared_ptr<Storage> storage_;
  Exchange exchange_;
  CheckpointWriter writer_;
  comm::StopAgreement stop_;
  std::unique_ptr<MetricLog> metrics_;  // rank 0

  data::Cursor cursor_;
  MetricsState best_;
  int64_t first_step_ = 0, saved_step_ = -1, evaluated_step_ = -1;
  bool stopped_early_ = false;
  double loss_ = 0;
  std::deque<int64_t> epochs_;  // finished when a step ended, of the steps not yet reported
  Throughput throughput_;
  std::vector<double> rank_tokens_;  // so far, by rank
  std::atomic<int64_t> current_step_{0};
  double step_seconds_ = 0;
};

}  // namespace tautline::train
