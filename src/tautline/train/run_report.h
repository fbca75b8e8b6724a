// report.html of a run: what diagnose/report.h draws, from what the trainer knows.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tautline/train/job.h"
#include "tautline/train/trainer.h"

namespace tautline::train {

struct ReportInput {
  const Job& job;
  const RunResult& result;
  std::string command;
  std::vector<std::map<std::string, double>> phase_seconds;  // by rank, over `steps` steps
  std::vector<double> tokens;                                // a step, by rank
  int64_t steps = 0;
};

/// Rank 0, after training: reads the run's own metrics.jsonl for the curves.
void write_run_report(const ReportInput& input);

}  // namespace tautline::train
