// What is trained: the dense network, the sharded tables, and how a batch becomes their inputs.
// The step changes it, the evaluation reads it, a checkpoint saves it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tautline/comm/communicator.h"
#include "tautline/embedding/sharded_table.h"
#include "tautline/models/inputs.h"
#include "tautline/models/losses.h"
#include "tautline/models/sequence_model.h"
#include "tautline/plan/plan.h"
#include "tautline/workload/model.h"
#include "tautline/workload/workload.h"

namespace tautline::train {

using Tables = std::map<std::string, std::unique_ptr<embedding::ShardedTable>>;

struct Network {
  ModelConfig config;   // tables with their numbers of rows filled in
  int64_t classes = 0;  // items that can be predicted: ids 1..classes
  models::SequenceModel model;
  Tables tables;
  models::InputBuilder inputs;

  /// `tables_group`: the communicator of all lookups.
  Network(const ModelConfig& config, const Plan& plan, int64_t classes, uint64_t seed,
          comm::Communicator tables_group);

  const embedding::ShardedTable* class_table() const;  // of the next-item head, or null
  double dense_parameters() const { return static_cast<double>(model.parameters().count()); }
};

/// Errors: a binary head whose label the log does not have.
void check_labels(const ModelConfig& model, const LogStatistics& log);

}  // namespace tautline::train
