#include "tautline/train/evaluate.h"

#include <array>
#include <chrono>
#include <cmath>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "tautline/train/ranking.h"

namespace tautline::train {
namespace {

using Reduction = comm::Communicator::Reduction;
constexpr double kCut = 10;

/// Hits, gains and users of a group of users, as sums.
struct RankingSums {
  double hits = 0, gains = 0, users = 0;
  void add(double rank) {
    users += 1;
    if (!(rank <= kCut)) return;
    hits += 1;
    gains += 1 / std::log2(rank + 1);
  }
};

/// all | unseen | later, as docs/metrics.md names them.
struct RankingGroups {
  std::array<RankingSums, 3> groups;

  void add(const TargetRanks& ranks, const data::EvaluationBatch& batch) {
    for (int64_t u = 0; u < batch.samples(); ++u) {
      groups[0].add(ranks.all[u]);
      groups[1].add(ranks.unseen[u]);
      if (batch.later[u]) groups[2].add(ranks.all[u]);
    }
  }
  void sum_over_ranks(comm::Communicator communicator) {
    at::Tensor sums = at::empty({9}, at::kDouble);
    double* s = sums.mutable_data_ptr<double>();
    for (const RankingSums& group : groups) {
      *s++ = group.hits;
      *s++ = group.gains;
      *s++ = group.users;
    }
    sums = sums.to(communicator.device());
    communicator.all_reduce(sums, Reduction::kSum, "evaluate.ranking").wait();
    sums = sums.cpu();
    const double* t = sums.const_data_ptr<double>();
    for (RankingSums& group : groups) {
      group = {t[0], t[1], t[2]};
      t += 3;
    }
  }
};

models::Rows look_up(Network& network, const models::Inputs& inputs) {
  models::Rows rows;
  for (const auto& [name, ids] : inputs.ids) {
    embedding::ShardedTable& table = *network.tables.at(name);
    embedding::Route route = table.start_ids(ids);
    rows[name] = table.return_rows(route, table.look_up(route));
  }
  return rows;
}

int64_t most_users(int64_t mine, comm::Communicator communicator) {
  if (communicator.size() == 1) return mine;
  at::Tensor most = at::zeros({1}, at::TensorOptions(at::kLong).device(communicator.device()));
  most.fill_(mine);
  communicator.all_reduce(most, Reduction::kMax, "evaluate.users").wait();
  return most.item<int64_t>();
}

void report(const RankingGroups& sums, EvaluationResult& result) {
  const char* suffix[] = {"", "_unseen", "_later"};
  for (size_t g = 0; g < 3; ++g) {
    const RankingSums& group = sums.groups[g];
    const double users = group.users > 0 ? group.users : std::numeric_limits<double>::quiet_NaN();
    result.values.emplace_back(std::string("hr_at_10") + suffix[g], group.hits / users);
    result.values.emplace_back(std::string("ndcg_at_10") + suffix[g], group.gains / users);
  }
  result.users = static_cast<int64_t>(sums.groups[0].users);
  result.later_users = static_cast<int64_t>(sums.groups[2].users);
}

}  // namespace

double EvaluationResult::get(const std::string& name) const {
  const std::string key = metric_key(name);
  for (const auto& [known, value] : values) {
    if (known == key || known.ends_with("_" + key)) return value;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

std::string metric_key(const std::string& name) {
  std::string key = name;
  const size_t at = key.find('@');
  if (at != std::string::npos) key.replace(at, 1, "_at_");
  return key;
}

EvaluationResult evaluate(Network& network, data::EvaluationReader& reader,
                          comm::Communicator communicator) {
  const at::NoGradGuard no_grad;
  const auto start = std::chrono::steady_clock::now();
  const HeadConfig* head = models::next_item_head(network.config);
  RankingGroups ranking;
  data::EvaluationBatch batch;
  while (reader.next(batch)) {
    const models::Inputs inputs = network.inputs.evaluation(batch);
    const models::Rows rows = look_up(network, inputs);
    const at::Tensor hidden = network.model.hidden(inputs, rows, {false, 0});
    if (head) {
      RankingOptions options;
      options.normalize = head->normalize;
      options.padded_users = most_users(batch.samples(), communicator);
      ranking.add(rank_targets(network.model.output(hidden), batch,
                               models::class_shard(*network.class_table(), network.classes),
                               options, communicator),
                  batch);
    }
  }
  EvaluationResult result;
  if (head) {
    ranking.sum_over_ranks(communicator);
    report(ranking, result);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace tautline::train
