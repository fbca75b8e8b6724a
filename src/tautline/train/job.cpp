#include "tautline/train/job.h"

#include <algorithm>
#include <set>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tautline/base/error.h"
#include "tautline/cluster/cluster_fields.h"
#include "tautline/cluster/discover.h"
#include "tautline/models/inputs.h"
#include "tautline/plan/plan_fields.h"
#include "tautline/planner/planner.h"
#include "tautline/train/checkpoint/digest.h"
#include "tautline/train/memory.h"
#include "tautline/train/network.h"
#include "tautline/workload/describe.h"
#include "tautline/workload/model_fields.h"

namespace tautline::train {
namespace {

Cluster find_cluster(const RunConfig& run, at::Device device, const comm::Launch& launch) {
  DiscoverOptions options;
  options.device = device.is_cuda() ? "cuda" : "cpu";
  options.cuda_visible_devices = comm::read_environment().cuda_visible_devices;
  options.nodes = std::max(1, launch.world / launch.local_world);
  return load_cluster(run.cluster, options);
}

}  // namespace

at::Device choose_device(const std::string& wanted, const comm::Launch& launch) {
  const int devices = at::globalContext().hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
  if (wanted == "cpu" || (wanted == "auto" && devices == 0)) return at::kCPU;
  if (devices == 0) {
    throw user_error(
        "device: cuda was asked for, but this machine or this build has no CUDA device");
  }
  if (launch.local_world > devices) {
    throw user_error("device: cuda has ", devices, " devices for ", launch.local_world,
                     " ranks on this node; start at most ", devices);
  }
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(launch.local_rank));
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  guard.setDevice(device);
  return device;
}

void check_threads(int wanted) {
  const int cores = usable_cores(), most = std::max(64, 8 * cores);
  if (wanted > most)
    throw user_error("threads: ", wanted, " are too many: this machine has ", cores,
                     " cores for us, a rank gets ", most, " threads at most");
}

int set_threads(int wanted, const comm::Launch& launch) {
  const int threads = wanted > 0 ? wanted : std::max(1, usable_cores() / launch.local_world);
  at::set_num_threads(threads);
  return threads;
}

void check_reported(const std::string& who, const std::string& metric, const ModelConfig& model) {
  if (metric == "loss") return;
  const bool ranking = metric.starts_with("hr") || metric.starts_with("ndcg");
  for (const auto& [name, head] : model.heads)
    if (ranking == (head.loss != HeadConfig::Loss::kBinary)) return;
  throw user_error(who, metric, ", which this model never reports: it has no ",
                   ranking ? "next_item head" : "head with a binary label");
}

/// A metric that the model never reports would stop the training as one that never gets better, or
/// leave the tables empty.
void check_metrics(const Evaluation& evaluation, const ModelConfig& model) {
  if (evaluation.stop_after > 0)
    check_reported("evaluate.stop_after waits for a better ", evaluation.stop_metric, model);
  for (const std::string& metric : evaluation.metrics)
    check_reported("evaluate.metrics asks for ", metric, model);
}

Job make_job(const JobRequest& request, const comm::Launch& launch, at::Device device,
             const Exchange& exchange) {
  Job job;
  job.run = request.run;
  job.log = data::read_log_statistics(request.run.data.log);
  if (job.log.events == 0) {
    throw user_error("the log ", request.run.data.log, " has no events to train on");
  }
  check_labels(request.model, job.log);
  check_metrics(job.run.evaluate, request.model);
  job.model = with_rows(request.model, job.log);
  job.model_digest = digest_of(to_yaml(job.model));
  job.classes = job.log.vocabularies.at("item").size;
  job.workload = describe(request.model, job.log, job.run.batch);
  job.cluster = find_cluster(job.run, device, launch);
  job.plan = planner::make_plan(job.run.plan, job.model, job.workload, job.cluster, launch.world);
  check_dense_memory(job, launch.world);
  job.folder =
      agree_on_run_folder({job.run, request.run_name, request.resume}, launch.rank, exchange);
  job.run_dir = job.folder->path;
  return job;
}

balance::Cost sample_cost(const ModelConfig& model) {
  const BackboneConfig& b = model.backbone;
  const auto flop = [&](double parameters, double tokens, double pairs) {
    return useful_flop(parameters, tokens, pairs, b.heads, b.width / b.heads, b.layers);
  };
  if (b.attention == BackboneConfig::Attention::kBlock) {  // linear: full blocks
    const double pairs = attention_pairs(double{kAttentionBlock}, b) / kAttentionBlock;
    return {flop(dense_parameters(model), 1, pairs), 0};
  }
  return {flop(dense_parameters(model), 1, 0), flop(0, 0, attention_pairs(1.0, b))};
}

data::EventColumns used_columns(const ModelConfig& model) {
  std::set<std::string> categorical, labels;
  for (const FeatureConfig& feature : model.features) {
    if (models::column_of(feature) != "item") categorical.insert(models::column_of(feature));
  }
  for (const auto& [name, head] : model.heads) {
    if (head.loss == HeadConfig::Loss::kBinary) labels.insert(models::label_of(name, head));
  }
  return {{categorical.begin(), categorical.end()}, {labels.begin(), labels.end()}};
}

data::ReaderOptions reader_options(const Job& job, int rank, int world) {
  data::ReaderOptions options;
  options.log = job.run.data.log;
  options.holdout =
      job.run.data.holdout == "none" ? data::Holdout::kNone : data::Holdout::kLeaveLastOut;
  const data::EventColumns columns = used_columns(job.model);
  options.categorical = columns.categorical;
  options.labels = columns.real;
  options.max_length = sample_length(job.model);
  options.batch = job.run.batch;
  options.batch_tokens = job.run.batch_tokens;
  options.seed = job.run.seed;
  options.rank = rank;
  options.world = world;
  options.workers = job.run.data.workers;
  options.prefetch = job.run.data.prefetch;
  options.shuffle_window = job.run.data.shuffle_window;
  options.balance = job.plan.balance;
  options.cost = sample_cost(job.model);
  return options;
}

}  // namespace tautline::train
