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
    tables[name] = std::make_unique<embedding::ShardedTable>(name, table, placed->second, group,
                                                             options);
  }
  return tables;
}

int64_t vocabulary(const LogStatistics& log, const std::string& column, const std::string& asker) {
  const auto found = log.vocabularies.find(column);
  if (found != log.vocabularies.end()) return found->second.size;
  std::vector<std::string> names;
  for (const auto& [name, statistics] : log.vocabularies) names.push_back(name);
  throw user_error(asker, " reads the column '", column, "', which the log '", log.name,
                   "' does not have", suggestion(column, names));
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

ModelConfig with_rows(const ModelConfig& model, const LogStatistics& log) {
  ModelConfig out = model;
  const auto need = [&](const std::string& table, const std::string& column,
                        const std::string& asker) {
    const int64_t ids = vocabulary(log, column, asker) + 1;
    TableConfig& config = out.tables.at(table);
    const bool open = model.tables.at(table).rows == 0;
    if (open) config.rows = std::max(config.rows, ids);
    if (!open && config.hash_ways == 0 && config.rows < ids) {
      throw user_error("tables.", table, ": ", config.rows, " rows are too few for the ", ids,
                       " ids of the column '", column, "'; set rows: 0, or hash them");
    }
  };
  for (const FeatureConfig& feature : model.features) {
    need(feature.table, models::column_of(feature), "the feature '" + feature.name + "'");
  }
  for (const auto& [name, head] : model.heads) {
    if (!head.table.empty()) need(head.table, "item", "the head '" + name + "'");
    if (head.loss != HeadConfig::Loss::kBinary) continue;
    const std::string label = models::label_of(name, head);
    if (std::count(log.labels.begin(), log.labels.end(), label) == 0) {
      throw user_error("the head '", name, "' learns the label '", label, "', which the log '",
                       log.name, "' does not have", suggestion(label, log.labels),
                       "; `data build --label ", label, "` keeps it");
    }
  }
  return out;
}

}  // namespace tautline::train
