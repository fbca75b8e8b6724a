#include "tautline/train/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "tautline/data/ranking.h"
#include "tautline/train/metrics.h"
#include "tautline/train/ranking.h"

namespace tautline::train {
namespace {

using Reduction = comm::Communicator::Reduction;

/// Metrics as sums over all ranks.
template <class Metrics>
Metrics over_ranks(const Metrics& mine, comm::Communicator communicator) {
  const std::vector<double> numbers = mine.sums();
  at::Tensor sums = at::empty({static_cast<int64_t>(numbers.size())}, at::kDouble);
  std::copy(numbers.begin(), numbers.end(), sums.mutable_data_ptr<double>());
  sums = sums.to(communicator.device());
  communicator.all_reduce(sums, Reduction::kSum, "evaluate.sums").wait();
  sums = sums.cpu();
  return Metrics::of({sums.const_data_ptr<double>(), static_cast<size_t>(sums.numel())});
}

models::Rows look_up(Network& network, const models::Inputs& inputs) {
  models::Rows rows;
  for (const auto& [name, ids] : inputs.ids) {
    embedding::ShardedTable& table = *network.tables.at(name);
    embedding::Route route = table.start_ids(ids);
    rows[name] = table.return_rows(route, table.look_up(route));
  }
  return rows;
}

/// This rank's share of the classes. A hashed table's rows are no classes: there each rank looks up
/// the items 1 + rank, 1 + rank + W, ... once an evaluation.
models::ClassShard ranking_classes(Network& network, comm::Communicator communicator) {
  const HeadConfig& head = *models::next_item_head(network.config);
  embedding::ShardedTable& table = *network.tables.at(head.table);
  if (table.config().hash_ways == 0) return models::class_shard(table, network.classes);
  models::ClassShard shard;
  shard.first = 1 + communicator.rank();
  shard.stride = communicator.size();
  const at::Tensor ids =
      at::arange(std::min(shard.first, network.classes + 1), network.classes + 1, shard.stride,
                 at::TensorOptions(at::kLong).device(communicator.device()));
  embedding::Route route = table.start_ids(ids);
  shard.rows = table.return_rows(route, table.look_up(route));
  shard.share = shard.rows.size(0);
  return shard;
}

int64_t most_users(int64_t mine, comm::Communicator communicator) {
  if (communicator.size() == 1) return mine;
  at::Tensor most = at::zeros({1}, at::TensorOptions(at::kLong).device(communicator.device()));
  most.fill_(mine);
  communicator.all_reduce(most, Reduction::kMax, "evaluate.users").wait();
  return most.item<int64_t>();
}

using BinaryHeads = std::map<std::string, BinaryMetrics>;

void score_binary(const Network& network, const models::Inputs& inputs, const models::Rows& rows,
                  const at::Tensor& hidden, BinaryHeads& heads) {
  for (auto& [name, metrics] : heads) {
    const HeadConfig& head = network.config.heads.at(name);
    at::Tensor candidate;
    if (!head.table.empty()) candidate = rows.at(head.table).index_select(0, inputs.target_row);
    const auto host = [](const at::Tensor& x) { return x.to(at::kFloat).cpu().contiguous(); };
    const at::Tensor logits = host(network.model.logits(name, hidden, candidate));
    const at::Tensor labels = host(inputs.label.at(name));
    const auto n = static_cast<size_t>(logits.numel());
    metrics.add({logits.const_data_ptr<float>(), n}, {labels.const_data_ptr<float>(), n});
  }
}

void report(const data::RankingMetrics& ranking, EvaluationResult& result) {
  const std::pair<const char*, const data::RankingSums*> groups[] = {
      {"", &ranking.all}, {"_unseen", &ranking.unseen}, {"_later", &ranking.later}};
  for (const auto& [suffix, sums] : groups) {
    result.values.emplace_back(std::string("hr_at_10") + suffix, sums->hr());
    result.values.emplace_back(std::string("ndcg_at_10") + suffix, sums->ndcg());
  }
  result.users = static_cast<int64_t>(ranking.all.users);
  result.later_users = static_cast<int64_t>(ranking.later.users);
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
  data::RankingMetrics ranking;
  BinaryHeads binary;
  for (const auto& [name, config] : network.config.heads) {
    if (config.loss == HeadConfig::Loss::kBinary) binary[name];
  }
  const models::ClassShard classes =
      head ? ranking_classes(network, communicator) : models::ClassShard{};
  const at::Tensor bias = network.model.repeat_bias();
  const double repeat_bias = bias.defined() ? bias.item<float>() : 0.0;
  data::EvaluationBatch batch;
  while (reader.next(batch)) {
    const models::Inputs inputs = network.inputs.evaluation(batch);
    const models::Rows rows = look_up(network, inputs);
    const at::Tensor hidden = network.model.hidden(inputs, rows, {false, 0});
    if (head) {
      RankingOptions options;
      options.normalize = head->normalize;
      options.repeat_bias = repeat_bias;
      options.padded_users = most_users(batch.samples(), communicator);
      const TargetRanks ranks =
          rank_targets(network.model.output(hidden), batch, classes, options, communicator);
      for (int64_t u = 0; u < batch.samples(); ++u) {
        ranking.add(ranks.all[u], ranks.unseen[u], batch.later[u] != 0);
      }
    }
    score_binary(network, inputs, rows, hidden, binary);
  }
  EvaluationResult result;
  if (head) {
    report(over_ranks(ranking, communicator), result);
  }
  for (const auto& [name, mine] : binary) {
    const BinaryMetrics metrics = over_ranks(mine, communicator);
    result.values.emplace_back(name + "_auc", metrics.auc());
    result.values.emplace_back(name + "_normalized_entropy", metrics.normalized_entropy());
    result.users = static_cast<int64_t>(metrics.examples());
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace tautline::train
