// The YAML of a run (configs/runs/*.yaml), its phrases ("1 epoch", "5 without ndcg@10") and checks.
// Header only and without torch, so that `config show` and `plan` need no engine.
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <tuple>
#include <utility>

#include "tautline/base/config.h"
#include "tautline/base/limits.h"
#include "tautline/plan/plan_fields.h"
#include "tautline/train/run.h"
#include "tautline/workload/model_fields.h"

namespace tautline {

constexpr auto choices(DenseOptimizer::Kind*) {
  return std::array{std::pair{DenseOptimizer::Kind::kAdamw, "adamw"}};
}

/// Metrics that an evaluation can report and early stopping can watch.
inline const std::vector<std::string>& metric_names() {
  static const std::vector<std::string> names = {"hr@10", "ndcg@10", "auc", "normalized_entropy",
                                                 "loss"};
  return names;
}

template <class V>
void fields(V& v, RunData& x) {
  v("log", x.log, "folder or URI that `tautline data build` wrote");
  v.one_of("holdout", x.holdout, {"leave_last_out", "none"},
           "leave_last_out: a user's last event tests, the one before validates");
  v("workers", x.workers, "reader threads; the batches are the same for any number");
  v("prefetch", x.prefetch, "batches ready ahead of the step");
  v("shuffle_window", x.shuffle_window, "users shuffled together");
}

template <class V>
void fields(V& v, DenseOptimizer& x) {  // under {KIND: ...}, see RunConfig
  v("lr", x.lr, "learning rate of the dense parameters, after warm-up");
  v("beta1", x.beta1, "decay of the mean gradient");
  v("beta2", x.beta2, "decay of the mean squared gradient");
  v("eps", x.eps, "added to the denominator");
  v("weight_decay", x.weight_decay, "decoupled, matrices only; 0: off");
  v("warmup", x.warmup, "steps over which the rate rises from 0");
  v.one_of("decay", x.decay, {"none", "linear", "cosine"}, "of the rate, to 0 at the last step");
  v("clip", x.clip, "largest norm of all dense gradients together; 0: off");
}

namespace run_detail {

// "1 epoch", "0.5 epochs", "500 steps", "end".
inline void parse_every(const std::string& text, double& epochs, int64_t& steps) {
  epochs = 0, steps = 0;
  if (text == "end") return;
  const size_t space = text.find(' ');
  const std::string number = text.substr(0, space);
  const std::string unit = space == std::string::npos ? "" : text.substr(space + 1);
  const auto real = parse_number(number);
  const auto whole = parse_integer(number);
  if ((unit == "epoch" || unit == "epochs") && real && *real > 0)
    epochs = *real;
  else if ((unit == "step" || unit == "steps") && whole && *whole > 0)
    steps = *whole;
  else
    throw user_error("expects '1 epoch', '500 steps' or 'end', found '", text, "'");
}

inline std::string print_every(double epochs, int64_t steps) {
  if (epochs > 0) return print_number(epochs) + (epochs == 1 ? " epoch" : " epochs");
  return steps > 0 ? print_integer(steps) + (steps == 1 ? " step" : " steps") : "end";
}

// "5 without ndcg@10", "never".
inline void parse_stop(const std::string& text, int& after, std::string& metric) {
  after = 0;
  if (text == "never") return;
  const std::string middle = " without ";
  const size_t at = text.find(middle);
  const auto count = parse_integer(text.substr(0, at));
  if (at == std::string::npos || !count || *count < 1 || *count > 1'000'000)
    throw user_error("expects '5 without ndcg@10' or 'never', found '", text, "'");
  after = static_cast<int>(*count);
  metric = text.substr(at + middle.size());
  const auto& names = metric_names();
  if (std::find(names.begin(), names.end(), metric) == names.end())
    throw user_error("names the metric '", metric, "'", suggestion(metric, names));
}

}  // namespace run_detail

template <class V>
void fields(V& v, Evaluation& x) {
  v.text(
      "every",
      [&](const auto& text) { run_detail::parse_every(text, x.every_epochs, x.every_steps); },
      [&] { return run_detail::print_every(x.every_epochs, x.every_steps); },
      "'1 epoch', '500 steps', or 'end' (only when training ends)");
  v("metrics", x.metrics,
    "what tables and report show of hr@10, ndcg@10, auc, normalized_entropy; empty: all");
  v("users", x.users, "how many users at most, drawn by seed; 0: all");
  v.text(
      "stop_after",
      [&](const auto& text) { run_detail::parse_stop(text, x.stop_after, x.stop_metric); },
      [&] {
        return x.stop_after == 0 ? std::string("never")
                                 : std::to_string(x.stop_after) + " without " + x.stop_metric;
      },
      "'5 without ndcg@10': stop after 5 evaluations that bring no better one; or 'never'");
  v("baselines", x.baselines, "show popularity and sequential rules beside the model");
}

template <class V>
void fields(V& v, CheckpointPolicy& x) {
  v("every", x.every, "steps between checkpoints; 0: only when training ends");
  v("keep", x.keep, "checkpoints that stay on disk");
  v("folder", x.folder, "folder or URI (s3://bucket/runs/a); by default checkpoints in the run's");
  v("fallback", x.fallback, "--resume may take the previous one if the last is damaged");
}

template <class V>
void fields(V& v, RunConfig& x) {
  v.either("epochs", "steps");
  v("model", x.model, "a model's YAML; beside the run's file, else from the current folder");
  v("data", x.data, "what it learns from");
  v("cluster", x.cluster, "discover, or a Cluster's YAML");
  v("plan", x.plan, "requests to the planner");
  v("ranks", x.ranks, "0: as many as the launcher started, else 1");
  v.one_of("device", x.device, {"auto", "cpu", "cuda"}, "auto: GPUs where there are any");
  v("threads", x.threads, "CPU threads of a rank; 0: cores / local ranks");
  v("batch", x.batch, "samples a step over all ranks: the same samples on any number of ranks");
  v("batch_tokens", x.batch_tokens, "0: off; else a step closes before it passes so many tokens");
  v("epochs", x.epochs, "passes over the log; this or steps");
  v("steps", x.steps, "steps in all; this or epochs");
  v.keyed("dense_optimizer", x.dense_optimizer, x.dense_optimizer.kind,
          "how parameters outside the tables change");
  v("evaluate", x.evaluate, "on held-out events");
  v("checkpoint", x.checkpoint, "what is saved, and when");
  v("seed", x.seed, "of everything random");
  v("run_dir", x.run_dir, "empty: runs/<name of the run's file>-<date>");
}

inline void validate(const RunConfig& run, const Provenance& at = {}) {
  const auto refuse = [&](const std::string& path, const auto&... parts) {
    throw user_error(at(path), path, parts...);
  };
  if (run.model.empty()) refuse("model", " is missing; it names a model's YAML file");
  if (run.data.workers < 1) refuse("data.workers", " must be 1 or more");
  if (run.data.prefetch < 1) refuse("data.prefetch", " must be 1 or more");
  if (run.data.shuffle_window < 1) refuse("data.shuffle_window", " must be 1 or more");
  if (run.ranks < 0) refuse("ranks", " must be 0 (the launcher's) or more");
  if (run.threads < 0) refuse("threads", " must be 0 (all cores) or more");
  if (run.batch < 1) refuse("batch", " must be 1 or more, found ", run.batch);
  if (run.batch_tokens < 0) refuse("batch_tokens", " must be 0 (off) or more");
  if (!(run.epochs >= 0 && run.epochs <= 1e9)) refuse("epochs", " must be 0 or more, 1e9 at most");
  if (run.steps < 0) refuse("steps", " must be 0 or more");
  if (run.epochs > 0 && run.steps > 0)
    refuse("steps", " and epochs are both given; one of them says how long to train");
  if (run.epochs == 0 && run.steps == 0) refuse("epochs", " or steps must say how long to train");
  constexpr int64_t kMostCounted = 1'000'000'000'000;  // steps, users: more than anybody waits for
  const std::tuple<std::string, int64_t, int64_t> limits[] = {
      {"data.workers", run.data.workers, 256},
      {"data.prefetch", run.data.prefetch, 1024},
      {"data.shuffle_window", run.data.shuffle_window, kMostCounted},
      {"ranks", run.ranks, 1'000'000},
      {"batch", run.batch, 1 << 30},
      {"batch_tokens", run.batch_tokens, kMostCounted},
      {"steps", run.steps, kMostCounted},
      {"evaluate.every", run.evaluate.every_steps, kMostCounted},
      {"evaluate.users", run.evaluate.users, kMostCounted},
      {"checkpoint.every", run.checkpoint.every, kMostCounted},
      {"dense_optimizer." + choice_name(run.dense_optimizer.kind) + ".warmup",
       run.dense_optimizer.warmup, kMostCounted}};
  for (const auto& [key, value, most] : limits) check_at_most(at, key, value, most);
  if (run.evaluate.every_epochs > 1e9) refuse("evaluate.every", " must be 1e9 epochs at most");
  const DenseOptimizer& o = run.dense_optimizer;
  const std::string optimizer = "dense_optimizer." + choice_name(o.kind) + ".";
  const std::pair<const char*, double> not_negative[] = {{"lr", o.lr},
                                                         {"eps", o.eps},
                                                         {"clip", o.clip},
                                                         {"weight_decay", o.weight_decay},
                                                         {"warmup", static_cast<double>(o.warmup)}};
  for (const auto& [key, value] : not_negative)
    if (!(value >= 0)) refuse(optimizer + key, " must be 0 or more, found ", value);
  const std::pair<const char*, double> decays[] = {{"beta1", o.beta1}, {"beta2", o.beta2}};
  for (const auto& [key, value] : decays)
    if (!(value >= 0 && value < 1)) refuse(optimizer + key, " must be in [0, 1), found ", value);
  for (const std::string& metric : run.evaluate.metrics)
    if (std::find(metric_names().begin(), metric_names().end(), metric) == metric_names().end())
      refuse("evaluate.metrics", " cannot hold '", metric, "'", suggestion(metric, metric_names()));
  if (run.evaluate.users < 0) refuse("evaluate.users", " must be 0 (all) or more");
  if (run.evaluate.stop_after > 0 && run.data.holdout == "none")
    refuse("evaluate.stop_after", " needs held-out events; data.holdout is none");
  if (run.checkpoint.every < 0) refuse("checkpoint.every", " must be 0 (at the end) or more");
  if (run.checkpoint.keep < 1) refuse("checkpoint.keep", " must be 1 or more");
  validate(run.plan, at, "plan");
}

/// A run with its model: both files, and the --set flags of both (`model.backbone.layers=4` changes
/// the model's YAML, everything else the run's; `model=FILE` names another model).
struct RunWithModel {
  RunConfig run;
  ModelConfig model;
  Provenance run_provenance, model_provenance;
  std::string model_path;  // as it was found
};

/// Errors: those of both files; no data.log, unless `needs_log` is false (configs that fit any log
/// leave it out, and `config show` shows them all the same).
inline RunWithModel read_run(const std::string& path, const std::vector<std::string>& sets = {},
                             bool needs_log = true) {
  RunWithModel out;
  std::vector<std::string> run_sets, model_sets;
  for (const std::string& set : sets) {
    const bool of_model = set.starts_with("model.") && set.find('.') < set.find('=');
    (of_model ? model_sets : run_sets).push_back(of_model ? set.substr(6) : set);
  }
  out.run = read_config<RunConfig>(path, run_sets, &out.run_provenance);
  if (needs_log && out.run.data.log.empty())
    throw user_error(out.run_provenance("data.log"),
                     "data.log is missing; give the folder that `tautline data build` wrote, such "
                     "as --set data.log=DIR");
  const auto found = [&](const char* key, const std::string& file) {
    // Of --set: what the user sees from where they stand.
    const Where* where = out.run_provenance.find(key);
    std::error_code ignored;
    const bool here = where && where->from_set() && std::filesystem::exists(file, ignored);
    return here ? file : beside(file, path);
  };
  if (out.run.cluster != "discover") out.run.cluster = found("cluster", out.run.cluster);
  out.run.plan.file = found("plan.file", out.run.plan.file);
  out.model_path = found("model", out.run.model);
  std::error_code error;  // what keeps it from being looked at is told where it is read
  if (!std::filesystem::exists(out.model_path, error) && !error)
    throw user_error(out.run_provenance("model"), "there is no model file '", out.run.model,
                     "', neither beside ", path, " nor in the current folder");
  out.model = read_config<ModelConfig>(out.model_path, model_sets, &out.model_provenance, "model.");
  if (out.model.name.empty()) out.model.name = std::filesystem::path(out.model_path).stem();
  return out;
}

}  // namespace tautline
