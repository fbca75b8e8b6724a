// What a run says of itself: a line at each evaluation, and at its end a table for people, one JSON
// object for scripts.
#pragma once

#include <string>

#include "tautline/train/job.h"
#include "tautline/train/trainer.h"

namespace tautline::train {

/// A counting model's value of a metric as EvaluationResult names it; NaN where it has none.
double baseline_metric(const BaselineMetrics& metrics, const std::string& name);

/// Whether evaluate.metrics asks for a metric as EvaluationResult names it (its _unseen and _later
/// and every head's are the metric's); without a list all are shown.
bool is_shown(const Evaluation& evaluation, const std::string& name);

/// The step whose weights were tested: the best one where early stopping chose, else the last.
int64_t tested_step(const Job& job, const RunResult& result);

/// "step 45  epoch 1  loss 3.41  validation hr_at_10 0.81  ndcg_at_10 0.59", over all items.
std::string validation_line(const Evaluation& evaluation, const data::Cursor& cursor, double loss,
                            const EvaluationResult& result);

/// A metric's name for people: "NDCG@10, unseen" for ndcg_at_10_unseen, "like AUC" for like_auc.
std::string metric_title(const std::string& name);

/// Metrics of the test events beside the counting models', throughput, and the run's folder.
std::string summary_table(const Job& job, const RunResult& result);

/// One line, without a newline. At least: step, epoch, loss, hr_at_10, ndcg_at_10 (and _unseen,
/// _later), popularity_ndcg_at_10, rules_ndcg_at_10, samples_per_s, tokens_per_s, targets_per_s,
/// step_ms_p50, run_dir; mfu on GPUs whose peak is known. What was not measured is null.
std::string summary_json(const Job& job, const RunResult& result);

}  // namespace tautline::train
