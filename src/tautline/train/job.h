// A run made concrete: the model with its rows, the Plan, the device, the folder. Everything that
// is decided before anything is allocated, the same on every rank.
#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "tautline/cluster/cluster.h"
#include "tautline/comm/launch.h"
#include "tautline/data/read/event_block.h"
#include "tautline/data/read/reader.h"
#include "tautline/plan/plan.h"
#include "tautline/train/checkpoint/checkpoint_reader.h"
#include "tautline/train/run.h"
#include "tautline/train/run_folder.h"
#include "tautline/workload/model.h"
#include "tautline/workload/workload.h"

namespace tautline::train {

struct JobRequest {
  RunConfig run;
  ModelConfig model;
  std::string run_name;  // stem of the run's file: names its folder
  bool resume = false;
};

struct Job {
  RunConfig run;
  ModelConfig model;  // rows filled in
  LogStatistics log;
  Workload workload;
  Cluster cluster;
  Plan plan;
  std::string run_dir;
  std::shared_ptr<RunFolder> folder;  // run_dir's, kept from other runs until the last copy goes
  std::string model_digest;
  int64_t classes = 0;  // items 1..classes
};

/// The device of this rank, made current. Errors: cuda where there is none, or fewer than local
/// ranks.
at::Device choose_device(const std::string& wanted, const comm::Launch& launch);

/// Errors: more threads for a rank than this machine could run side by side by far.
void check_threads(int wanted);

/// Threads for this rank's operators: `wanted`, or the cores shared among the node's ranks.
int set_threads(int wanted, const comm::Launch& launch);

/// `exchange`: rank 0 names the run's folder. Errors: the log's, the model's on this log, the
/// planner's; a folder that already holds checkpoints where `resume` was not asked for, or that
/// another run is writing.
Job make_job(const JobRequest& request, const comm::Launch& launch, at::Device device,
             const Exchange& exchange);

/// Useful FLOP of a sample by its length (workload/describe.h): what dealing by length evens out.
balance::Cost sample_cost(const ModelConfig& model);

/// The columns of the log, beside item and time, that this model reads.
data::EventColumns used_columns(const ModelConfig& model);

data::ReaderOptions reader_options(const Job& job, int rank, int world);

}  // namespace tautline::train
