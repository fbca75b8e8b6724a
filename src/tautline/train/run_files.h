// What a run leaves in its folder beside metrics and checkpoints:
//
//   plan.yaml, run.yaml, model.yaml   what it was made of
//   timeline.jsonl, timeline.json     what happened on every rank; the second opens in Perfetto
//   report.html                       all of it for people (run_report.h)
//
// Each is whole or the one before it (base/new_file.h). What cannot be written after the training is
// no reason to lose what it came to: those errors are collected and told at the end.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tautline/train/job.h"
#include "tautline/train/recorder.h"
#include "tautline/train/run_report.h"
#include "tautline/train/unwritten.h"

namespace tautline::train {

/// Rank 0, before training.
void write_configs(const Job& job);

/// All ranks: joins their timelines on rank 0, hosts aligned by their collectives, and writes both
/// files. Returns the joined one there, and there adds to `unwritten` what any rank could not write.
Timeline write_timelines(const Job& job, const Recorder& recorder, int rank, int ranks,
                         const Exchange& exchange, Unwritten& unwritten);

/// Every rank's seconds by phase of its compute stream, by rank. Waits lie inside the phases.
std::vector<std::map<std::string, double>> gather_phases(const Recorder& recorder,
                                                         const Exchange& exchange);

}  // namespace tautline::train
