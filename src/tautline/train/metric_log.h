// A run's metrics, for people and for programs, from rank 0:
//
//   RUN/metrics.jsonl          one object a line: {"kind": "train", "step": 12, "epoch": 0, "time":
//   ...,
//                              "loss": ...}; full precision, written through at once
//   RUN/tensorboard/events...  the same numbers as TensorBoard scalars "kind/name"
//
// A number that is no number (a NaN loss) is null in JSON. A run that goes on from step k writes on
// behind it: lines of steps after k, which the run before it wrote and lost, are dropped, and
// TensorBoard is told to forget them. What it measures once more at step k itself (the test of a run
// that was over already) is there and not written again.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tautline::train {

struct MetricRecord {
  std::string kind;  // train, validation, test, baseline
  int64_t step = 0;  // steps done when it was measured
  int64_t epoch = 0;
  double time = 0;                                     // seconds since 1970; 0: now
  std::vector<std::pair<std::string, double>> values;  // in the order to show
};

class EventFile;

class MetricLog {
 public:
  /// `resume_step`: steps already done, 0 for a new run. Errors: a folder that cannot be written.
  MetricLog(const std::string& run_dir, int64_t resume_step);
  ~MetricLog();
  /// Errors: a full disk, with the file's name.
  void write(const MetricRecord& record);

 private:
  std::string path_;
  std::ofstream jsonl_;
  std::set<std::pair<std::string, int64_t>> measured_;  // kind and step of the lines kept
  std::unique_ptr<EventFile> events_;
};

/// "loss 5.213  ndcg@10 0.0502  12.3 k tokens/s": for a progress bar's detail or a line.
std::string terminal_text(const std::vector<std::pair<std::string, double>>& values);

/// Reads metrics.jsonl back; a last line cut short by a crash is left out.
std::vector<MetricRecord> read_metric_log(const std::string& run_dir);

}  // namespace tautline::train
