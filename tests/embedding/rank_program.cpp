// A table over ranks that are processes: the same steps by every sharding, on the CPU (Gloo) and
// with --cuda on this rank's GPU (NCCL) too. On one kind of device all shardings must agree bit for
// bit. Between the two SGD on whole numbers must be equal, and the others within the roundings of
// their last operations (fused or not).
//
//   embedding_rank_program [--ranks N] [--cuda]
//
// prints "rank R agrees: ..." or what differs, then exits with 1.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "tautline/base/error.h"
#include "tautline/base/random.h"
#include "tautline/comm/local.h"
#include "tautline/comm/mesh.h"
#include "tautline/embedding/sharded_table.h"

namespace tautline::embedding {
namespace {

using Kind = TableOptimizer::Kind;

constexpr int64_t kRows = 5003, kDim = 32, kIds = 6000, kSteps = 3;

at::Tensor ids_of(int rank, int world, int64_t step) {
  Random random(static_cast<uint64_t>(step), RandomUse::kSynthetic);
  at::Tensor ids = at::zeros({kIds}, at::kLong);
  for (int64_t i = 0; i < kIds; ++i) {
    const double u = random.uniform();
    ids.data_ptr<int64_t>()[i] = static_cast<int64_t>(u * u * u * kRows);
  }
  return ids.slice(0, rank, kIds, world).contiguous();
}

at::Tensor gradients_of(const at::Tensor& ids) {
  return ids.remainder(5)
      .sub(2)
      .to(at::kFloat)
      .view({-1, 1})
      .mul(at::arange(1, kDim + 1, at::kFloat));
}

struct Result {
  at::Tensor values;   // of the last lookup, [n, E]
  at::Tensor weights;  // [R, E'], whole, the same on all ranks
};

Result train(const comm::Mesh& mesh, comm::Communicator group, Sharding sharding, Kind kind,
             int64_t ways) {
  TableConfig config;
  config.rows = kRows;
  config.dim = kDim;
  config.hash_ways = ways;
  config.optimizer.kind = kind;
  if (kind == Kind::kSgd) config.optimizer.lr = 1;
  ShardedTable table("item", config, {sharding, mesh.size() - 1, ""}, group);
  if (kind == Kind::kSgd) {
    const at::Tensor whole = at::arange(table.rows(), at::kFloat).view({-1, 1});
    table.load("weight", whole.repeat({1, table.weight().size(1)}), 0, 1);
  }
  Result result;
  for (int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor host = step == 1 && mesh.rank() == 0 ? at::zeros({0}, at::kLong)
                                                          : ids_of(mesh.rank(), mesh.size(), step);
    const at::Tensor ids = host.to(group.device());
    Route route = table.start_ids(ids);
    result.values = table.return_rows(route, table.look_up(route)).cpu();
    table.apply(table.coalesce(route, gradients_of(host).to(group.device())));
  }
  result.weights = at::zeros({table.rows(), kDim / std::max<int64_t>(1, ways)});
  for (const TableState& state : table.state())
    if (state.kind == "weight" && state.saved_here)
      result.weights.slice(0, state.first, state.global_rows, state.stride)
          .narrow(0, 0, state.tensor.size(0))
          .copy_(state.tensor);
  mesh.control().all_reduce(result.weights, comm::Communicator::Reduction::kSum, "weights").wait();
  return result;
}

double distance(const Result& a, const Result& b) {
  return std::max(a.values.sub(b.values).abs().max().item<double>(),
                  a.weights.sub(b.weights).abs().max().item<double>());
}

bool compare(const comm::Mesh& mesh, const char* what, const Result& result, const Result& wanted,
             double tolerance) {
  const double apart = distance(result, wanted);
  if (apart <= tolerance) return true;
  std::printf("rank %d: %s: %g apart, at most %g is right\n", mesh.rank(), what, apart, tolerance);
  return false;
}

bool agree(const comm::Mesh& mesh, bool cuda) {
  bool all = true;
  for (const Kind kind : {Kind::kSgd, Kind::kRowwiseAdagrad, Kind::kAdam})
    for (const int64_t ways : {0, 2}) {
      std::vector<Result> first;  // of the CPU and of the GPU
      for (const bool on_device : {false, true}) {
        if (on_device && !cuda) continue;
        std::optional<Result> of_device;
        for (const Sharding sharding :
             {Sharding::kRowWise, Sharding::kTableWise, Sharding::kDataParallel}) {
          const Result result =
              train(mesh, on_device ? mesh.world() : mesh.control(), sharding, kind, ways);
          if (!of_device) of_device = result;
          all &= compare(mesh, "another sharding", result, *of_device, 0);
        }
        first.push_back(*of_device);
      }
      if (!cuda) continue;
      // A step rounds at most four times: square root, quotient, product, difference.
      const double largest = first[0].weights.abs().max().item<double>();
      all &= compare(mesh, "another device", first[1], first[0],
                     kind == Kind::kSgd ? 0 : kSteps * 4 * 0x1p-24 * largest);
    }
  return all;
}

// On a device an id beyond the table shows when the counts reach the host.
bool refuses_wrong_ids(const comm::Mesh& mesh, comm::Communicator group) {
  TableConfig config;
  config.rows = kRows;
  config.dim = kDim;
  ShardedTable table("item", config, {}, group);
  for (const int64_t id : {kRows, int64_t{-1}}) {
    bool refused = false;
    try {
      Route route = table.start_ids(at::full({3}, id, at::kLong).to(group.device()));
      table.look_up(route);
    } catch (const UserError& error) {
      refused = std::strstr(error.what(), "'item' of 5003 rows") != nullptr;
    }
    if (!refused) std::printf("rank %d: id %d was taken\n", mesh.rank(), static_cast<int>(id));
    if (!refused) return false;
  }
  return true;
}

}  // namespace
}  // namespace tautline::embedding

int main(int count, char** arguments) {
  using namespace tautline;
  int ranks = 0;
  bool cuda = false;
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(arguments[i], "--cuda") == 0) cuda = true;
    if (std::strcmp(arguments[i], "--ranks") == 0 && i + 1 < count)
      ranks = std::atoi(arguments[i + 1]);
  }
  const comm::Launch launch = comm::detect_launch();
  if (ranks > 0 && launch.launcher == "single")
    return comm::run_local_ranks({.ranks = ranks, .arguments = {arguments, arguments + count}});
  comm::prepare_process(launch);
  comm::MeshOptions options;
  if (cuda) options.device = at::Device(at::kCUDA, static_cast<int8_t>(launch.local_rank));
  const auto mesh = comm::Mesh::open(launch, options);
  const bool good =
      embedding::agree(*mesh, cuda) & embedding::refuses_wrong_ids(*mesh, mesh->world());
  std::printf("rank %d %s\n", mesh->rank(), good ? "agrees" : "differs");
  std::fflush(stdout);
  mesh->finish();
  return good ? 0 : 1;
}
