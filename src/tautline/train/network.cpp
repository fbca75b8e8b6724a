#include "tautline/train/network.h"

#include <algorithm>

#include "tautline/base/error.h"
#include "tautline/base/nearest.h"

namespace tautline::train {
namespace {

Tables make_tables(const ModelConfig& config, const Plan& plan, uint64_t seed,
                   const comm::Communicator& group) {
  Tables tables;
  for (const auto& [name, table] : config.tables) {
    const auto placed = plan.tables.find(name);
    if (placed == plan.tables.end()) {
      throw user_error("the plan says nothing about table '", name, "'; derive it anew");
    }
    embedding::ShardedTableOptions options;
    options.seed = seed;
    tables[name] =
        std::make_unique<embedding::ShardedTable>(name, table, placed->second, group, options);
  }
  return tables;
}

}  // namespace

Network::Network(const ModelConfig& config, const Plan& plan, int64_t classes, uint64_t seed,
                 comm::Communicator tables_group)
    : config(config),
      classes(classes),
      model(config, plan.precision, seed, tables_group.device()),
      tables(make_tables(config, plan, seed, tables_group)),
      inputs(config, classes, seed, tables_group.device()) {}

const embedding::ShardedTable* Network::class_table() const {
  const HeadConfig* head = models::next_item_head(config);
  return head ? tables.at(head->table).get() : nullptr;
}

void check_labels(const ModelConfig& model, const LogStatistics& log) {
  for (const auto& [name, head] : model.heads) {
    if (head.loss != HeadConfig::Loss::kBinary) continue;
    const std::string label = models::label_of(name, head);
    if (std::count(log.labels.begin(), log.labels.end(), label) == 0) {
      throw user_error("the head '", name, "' learns the label '", label, "', which the log '",
                       log.name, "' does not have", suggestion(label, log.labels),
                       "; `data build --label ", label, "` keeps it");
    }
  }
}

}  // namespace tautline::train
