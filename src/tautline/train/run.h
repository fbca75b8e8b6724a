// A run: which model on which data, for how long (configs/runs/*.yaml). No torch here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tautline/plan/plan.h"

namespace tautline {

struct RunData {
  std::string log;                         // folder or URI that `tautline data build` wrote
  std::string holdout = "leave_last_out";  // or none: every event trains
  int workers = 1;                         // reader threads
  int prefetch = 4;                        // batches ready ahead of the step
  int64_t shuffle_window = 1 << 20;  // users shuffled together; a log this small is shuffled whole
  bool operator==(const RunData&) const = default;
};

struct DenseOptimizer {
  enum class Kind { kAdamw };
  Kind kind = Kind::kAdamw;
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.98;
  double eps = 1e-8;
  double weight_decay = 0.0;   // matrices only
  int64_t warmup = 0;          // steps
  std::string decay = "none";  // none, linear, cosine: to zero at the last step
  double clip = 0.0;           // norm over all dense parameters; 0: off
  bool operator==(const DenseOptimizer&) const = default;
};

struct Evaluation {
  double every_epochs = 1.0;  // "1 epoch"; 0 with every_steps 0: at the end only
  int64_t every_steps = 0;
  std::vector<std::string> metrics;  // that people are shown; empty: all that the model reports
  int64_t users = 0;                 // how many users at most, drawn by seed; 0: all
  int stop_after = 0;                // evaluations without a better stop_metric; 0: off
  std::string stop_metric = "ndcg@10";
  bool baselines = true;  // show popularity and sequential rules beside the model
  bool operator==(const Evaluation&) const = default;
};

struct CheckpointPolicy {
  int64_t every = 500;  // steps; 0: at the end only
  int keep = 3;
  std::string folder;     // or a URI (s3://bucket/runs/a); empty: RUN_DIR/checkpoints
  bool fallback = false;  // --resume may take the previous checkpoint if the last is damaged
  bool operator==(const CheckpointPolicy&) const = default;
};

struct RunConfig {
  std::string model;  // a model YAML
  RunData data;
  std::string cluster = "discover";  // or a cluster YAML
  PlanRequest plan;
  int ranks = 0;                // 0: as many as the launcher started, or 1
  std::string device = "auto";  // auto, cpu, cuda
  int threads = 0;              // CPU threads a rank; 0: cores / local ranks
  int64_t batch = 512;          // samples a step over all ranks
  int64_t batch_tokens = 0;     // 0: off; else a step closes before it passes this many tokens
  double epochs = 0;            // one of epochs and steps
  int64_t steps = 0;
  DenseOptimizer dense_optimizer;
  Evaluation evaluate;
  CheckpointPolicy checkpoint;
  uint64_t seed = 1;
  std::string run_dir;  // empty: runs/<name of the run file>-<date>
  bool operator==(const RunConfig&) const = default;
};

}  // namespace tautline
