// Full ranking: where the held-out item stands among all items, with the table sharded over ranks.
//
// Every rank scores all users of the call against its own share of the classes and counts the items
// with a higher and an equal score; the sum over ranks gives the rank = 1 + higher + equal / 2 (the
// target itself does not count). A target is compared with a score of the very product that ranked
// the others, so equal vectors are equal to the bit.
//
// U users a rank (padded to P over W ranks), c classes here, E embedding dimension. Memory: a chunk
// of [W P, kChunk] scores. A rank sends about (W - 1) P E floats a call.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tautline/comm/communicator.h"
#include "tautline/data/read/batch.h"
#include "tautline/models/losses.h"

namespace tautline::train {

/// By user of this rank.
struct TargetRanks {
  std::vector<double> all;     // among all items
  std::vector<double> unseen;  // among the items that are not in the user's known history
};

struct RankingOptions {
  bool normalize = false;    // the head's: cosine instead of dot product
  double repeat_bias = 0;    // of the head: on the scores of the known history's items
  int64_t padded_users = 0;  // P: the same on every rank, at least every rank's U
  int64_t chunk_classes = 1 << 15;
};

/// All ranks call it together. users [U, E].
TargetRanks rank_targets(const at::Tensor& users, const data::EvaluationBatch& batch,
                         const models::ClassShard& classes, const RankingOptions& options,
                         comm::Communicator communicator);

}  // namespace tautline::train
