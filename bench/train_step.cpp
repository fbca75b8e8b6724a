// The whole training step of a model on synthetic batches: time, tokens/s, targets/s, MFU.
//
// Batches are those of the usual hand-written comparison: `batch` sequences a rank (weak scaling:
// fixed for each rank) with log-normal lengths (mean 400, sigma .9, clipped to [16, 2048]), ids
// floor(u^4 * rows), every token a target. Eight different batches take turns. MFU by
// docs/metrics.md: 6 P tokens + 3.5 x 4 H d causal pairs x layers over the card's dense bf16 rate by its
// data sheet; left out where that is not known (cluster/peak.h).
//
//   bench_train_step configs/models/peer_s.yaml --batch 512 --device cuda --bf16
//       [--steps 16] [--warmup 6] [--json FILE] [--trace FILE] [--losses] [--threads N]
//       [--mean 400] [--max 2048] [--dump FILE]
//
// On a GPU `memory` says the most that tensors held and the most that libtorch's allocator held, and how
// often in the measured steps it asked the driver for memory or gave all of its own back first (retries).
//
// --dump writes the parameters, the first batch's rows and its loss as safetensors, for
// bench/peer_first_loss.py: from equal weights another implementation must find the same loss.
//
// Started by torchrun (--no-python) or mpirun it runs on several ranks; rank 0 prints.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/index_select.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "tautline/base/config.h"
#include "tautline/base/random.h"
#include "tautline/cluster/discover.h"
#include "tautline/comm/mesh.h"
#include "tautline/planner/planner.h"
#include "tautline/train/checkpoint/safetensors.h"
#include "tautline/train/network.h"
#include "tautline/train/step.h"
#include "tautline/workload/describe.h"
#include "tautline/workload/model_fields.h"

namespace tautline {
namespace {

struct Arguments {
  std::string model, device = "cpu", json, trace, dump;
  int64_t batch = 512, steps = 16, warmup = 6, maximum = 2048;
  double mean = 400;
  int threads = 0;
  bool bf16 = false, losses = false;
};

Arguments parse(int argc, char** argv) {
  if (argc < 2)
    throw UserError("usage: bench_train_step MODEL.yaml [--batch B] [--device cuda] ...");
  Arguments a;
  a.model = argv[1];
  for (int i = 2; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&] {
      if (i + 1 >= argc) throw user_error(flag, " needs a value");
      return std::string(argv[++i]);
    };
    if (flag == "--batch")
      a.batch = std::stoll(value());
    else if (flag == "--steps")
      a.steps = std::stoll(value());
    else if (flag == "--warmup")
      a.warmup = std::stoll(value());
    else if (flag == "--mean")
      a.mean = std::stod(value());
    else if (flag == "--max")
      a.maximum = std::stoll(value());
    else if (flag == "--threads")
      a.threads = std::stoi(value());
    else if (flag == "--device")
      a.device = value();
    else if (flag == "--json")
      a.json = value();
    else if (flag == "--trace")
      a.trace = value();
    else if (flag == "--dump")
      a.dump = value();
    else if (flag == "--bf16")
      a.bf16 = true;
    else if (flag == "--losses")
      a.losses = true;
    else
      throw user_error("unknown option ", flag);
  }
  return a;
}

std::vector<int64_t> lengths(const Arguments& a, int64_t index, int rank) {
  Random random(1, RandomUse::kSynthetic,
                static_cast<uint64_t>(index) << 20 | static_cast<uint64_t>(rank));
  constexpr double kSigma = 0.9;
  std::vector<int64_t> result;
  for (int64_t i = 0; i < a.batch; ++i) {
    const double x = std::exp(std::log(a.mean) - kSigma * kSigma / 2 + kSigma * random.normal());
    result.push_back(std::clamp<int64_t>(std::llround(x), 16, a.maximum));
  }
  return result;
}

/// Rank `rank`'s part of batch `index`; ids in [1, classes].
data::Batch make_batch(const Arguments& a, int64_t index, int rank, int world, int64_t classes) {
  data::Batch batch;
  for (int r = 0; r < world; ++r) {
    int64_t tokens = 0;
    for (int64_t n : lengths(a, index, r)) tokens += n;
    batch.rank_tokens.push_back(tokens);
    batch.global_tokens += tokens;
  }
  batch.global_samples = a.batch * world;
  batch.global_targets = batch.global_tokens;
  Random random(2, RandomUse::kSynthetic,
                static_cast<uint64_t>(index) << 20 | static_cast<uint64_t>(rank));
  const auto draw = [&] {
    return 1 + std::min(classes - 1, static_cast<int64_t>(std::pow(random.uniform(), 4) *
                                                          static_cast<double>(classes)));
  };
  const std::vector<int64_t> mine = lengths(a, index, rank);
  for (int64_t i = 0; i < a.batch; ++i) {
    batch.sample.push_back(rank * a.batch + i);
    batch.user.push_back(rank * a.batch + i);
    for (int64_t j = 0; j < mine[static_cast<size_t>(i)]; ++j) {
      batch.item.push_back(draw());
      batch.time.push_back(j);
      if (j > 0) batch.target.push_back(batch.item.back());
    }
    batch.target.push_back(draw());
    batch.offsets.push_back(static_cast<int64_t>(batch.item.size()));
  }
  return batch;
}

void synchronize(at::Device device) {
  if (device.is_cuda())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

/// All zeros on a CPU.
c10::CachingDeviceAllocator::DeviceStats memory_of(at::Device device) {
  if (device.is_cpu()) return {};
  return at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Before the first step: what the loss of `batch` is computed from.
void dump(const std::string& path, train::Network& network, const data::Batch& batch) {
  const at::NoGradGuard no_grad;
  const models::Inputs inputs = network.inputs.training(batch);
  embedding::ShardedTable& table = *network.tables.at("item");
  embedding::Route route = table.start_ids(inputs.ids.at("item"));
  const at::Tensor rows = table.return_rows(route, table.look_up(route));
  const HeadConfig& head = *models::next_item_head(network.config);
  std::vector<std::pair<std::string, at::Tensor>> tensors{
      {"rows", rows.narrow(0, 0, inputs.tokens)},
      {"positive", rows.index_select(0, inputs.target_row)},
      {"negative", rows.narrow(0, inputs.negative_row, head.negatives)},
      {"offsets", inputs.offsets}};
  for (const dense::Parameter& parameter : network.model.parameters().all())
    tensors.emplace_back(parameter.name, parameter.value);
  std::vector<train::TensorView> views;
  for (auto& [name, tensor] : tensors) {
    tensor = tensor.detach().cpu().contiguous();
    const auto type =
        tensor.scalar_type() == at::kLong ? train::DataType::kI64 : train::DataType::kF32;
    views.push_back({name, type, tensor.sizes().vec(), tensor.const_data_ptr()});
  }
  const auto storage = train::open_storage(std::filesystem::path(path).parent_path());
  const auto out = storage->create(std::filesystem::path(path).filename());
  train::write_safetensors(*out, views);
}

int run(const Arguments& a) {
  const comm::Launch launch = comm::detect_launch();
  comm::prepare_process(launch);
  const at::Device device = a.device == "cuda"
                                ? at::Device(at::kCUDA, static_cast<int8_t>(launch.local_rank))
                                : at::Device(at::kCPU);
  if (a.threads > 0) at::set_num_threads(a.threads);
  const c10::DeviceGuard guard(device);
  const auto mesh = comm::Mesh::open(launch, {.device = device});

  ModelConfig model = read_config<ModelConfig>(a.model);
  const int64_t classes = model.tables.at("item").rows - 1;
  Cluster cluster = discover();
  PlanRequest request;
  request.compute = a.bf16 ? "bf16" : "fp32";
  LogStatistics log;
  log.vocabularies["item"].size = classes;
  log.length.mean = a.mean;
  const Workload workload = describe(model, log, a.batch * mesh->size());
  const Plan plan = planner::make_plan(request, model, workload, cluster, mesh->size());
  train::Network network(model, plan, classes, 1, mesh->group("tables"));
  train::Recorder recorder({.rank = mesh->rank()});
  train::StepOptions options;
  options.dense.clip = 1.0;
  train::Step step(network, options, mesh->world(), mesh->group("dense"), recorder);

  std::vector<data::Batch> batches;
  for (int64_t i = 0; i < 8; ++i)
    batches.push_back(make_batch(a, i, mesh->rank(), mesh->size(), classes));
  if (!a.dump.empty()) dump(a.dump, network, batches[0]);
  std::vector<double> losses;
  const auto collect = [&](size_t ahead) {
    while (const auto report = step.next_report(ahead)) losses.push_back(report->loss);
  };
  int64_t number = 0;
  const auto next = [&] {
    data::Batch& batch = batches[static_cast<size_t>(number % 8)];
    batch.step = number++;
    const auto whole = recorder.span(batch.step, "host", "step");
    step.run(batch);
    collect(2);
  };
  for (int64_t i = 0; i < a.warmup; ++i) next();
  collect(0);
  synchronize(device);
  step.flush_phases();
  const auto before = recorder.totals();
  const auto memory_before = memory_of(device);

  double pairs = 0, tokens = 0;
  std::vector<double> times;
  const double start = seconds();
  for (int64_t i = 0; i < a.steps; ++i) {
    const data::Batch& batch = batches[static_cast<size_t>(number % 8)];
    for (size_t s = 0; s + 1 < batch.offsets.size(); ++s) {
      const auto n = static_cast<double>(batch.offsets[s + 1] - batch.offsets[s]);
      pairs += n * (n + 1) / 2;
    }
    tokens += static_cast<double>(batch.tokens());
    next();
  }
  collect(0);
  synchronize(device);
  const double elapsed = seconds() - start;
  step.flush_phases();
  const auto after = recorder.totals();
  const auto memory_after = memory_of(device);

  if (!a.trace.empty()) {
    const std::set<torch::profiler::impl::ActivityType> activities{
        torch::profiler::impl::ActivityType::CPU, torch::profiler::impl::ActivityType::CUDA};
    const torch::profiler::impl::ProfilerConfig config(
        torch::profiler::impl::ProfilerState::KINETO);
    torch::autograd::profiler::prepareProfiler(config, activities);
    torch::autograd::profiler::enableProfiler(
        config, activities, {at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE});
    for (int i = 0; i < 2; ++i) next();
    synchronize(device);
    torch::autograd::profiler::disableProfiler()->save(a.trace);
  }

  const BackboneConfig& backbone = model.backbone;
  const double flop = useful_flop(network.dense_parameters(), tokens, pairs, backbone.heads,
                                  backbone.width / backbone.heads, backbone.layers);
  nlohmann::json result{{"model", model.name},
                        {"ranks", mesh->size()},
                        {"batch_per_rank", a.batch},
                        {"device", a.device},
                        {"compute", request.compute},
                        {"dense_parameters", network.dense_parameters()},
                        {"tokens_per_step_per_rank", tokens / static_cast<double>(a.steps)},
                        {"step_ms", elapsed / static_cast<double>(a.steps) * 1e3},
                        {"tokens_per_s_per_rank", tokens / elapsed}};
  if (const double peak = cluster.device.peak_flops.bf16; peak > 0)
    result["mfu"] = flop / elapsed / peak;
  if (!device.is_cpu())
    result["memory"] = {
        {"allocated_peak", memory_after.allocated_bytes[0].peak},
        {"reserved_peak", memory_after.reserved_bytes[0].peak},
        {"driver_calls", memory_after.num_device_alloc - memory_before.num_device_alloc},
        {"retries", memory_after.num_alloc_retries - memory_before.num_alloc_retries}};
  if (a.losses) result["losses"] = losses;
  for (const auto& [phase, total] : after) {  // `compute` is by the device's clock
    const auto earlier = before.find(phase);
    const double seconds = total - (earlier == before.end() ? 0 : earlier->second);
    result["phase_ms"][phase.first + "." + phase.second] =
        seconds / static_cast<double>(a.steps) * 1e3;
  }
  if (mesh->rank() == 0) {
    std::printf("%s\n", result.dump(a.json.empty() ? 1 : -1).c_str());
    if (!a.json.empty()) std::ofstream(a.json) << result.dump(1) << "\n";
  }
  mesh->finish();
  return 0;
}

}  // namespace
}  // namespace tautline

int main(int argc, char** argv) {
  try {
    return tautline::run(tautline::parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_train_step: %s\n", error.what());
    return 2;
  }
}
