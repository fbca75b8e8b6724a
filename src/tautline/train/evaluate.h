// Evaluation on held-out events: full ranking for the next-item head, AUC and normalised entropy
// for binary heads. Users are dealt to ranks; every rank scores every user against its own classes
// (ranking.h). What comes back is the same on every rank.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tautline/comm/communicator.h"
#include "tautline/data/read/reader.h"
#include "tautline/train/network.h"

namespace tautline::train {

struct EvaluationResult {
  int64_t users = 0, later_users = 0;
  double seconds = 0;
  /// By name, in the order to show: hr_at_10, ndcg_at_10, then _unseen and _later; NAME_auc and
  /// NAME_normalized_entropy of a binary head. Only what the model has heads for.
  std::vector<std::pair<std::string, double>> values;

  /// NaN where there is no such metric. `name` as in a run's YAML (ndcg@10) or as above.
  double get(const std::string& name) const;
};

/// ndcg@10 -> ndcg_at_10; auc of the only binary head.
std::string metric_key(const std::string& name);

EvaluationResult evaluate(Network& network, data::EvaluationReader& reader,
                          comm::Communicator communicator);

}  // namespace tautline::train
