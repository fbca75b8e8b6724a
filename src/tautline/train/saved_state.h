// What of a run a checkpoint holds, by name, and the way back:
//
//   dense.NAME, adamw.first.NAME, adamw.second.NAME     replicated; rank 0 saves them
//   table.TABLE.KIND (weight, adagrad_sum, adam_m, ...)  the rows that a rank holds
//
// There is no random state beside (seed, step): every number is keyed by what it is for.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tautline/dense/adamw.h"
#include "tautline/train/checkpoint/checkpoint_reader.h"
#include "tautline/train/checkpoint/checkpoint_writer.h"
#include "tautline/train/network.h"

namespace tautline::train {

/// A copy on the host of what this rank saves.
Snapshot take_snapshot(const Network& network, const dense::AdamW& optimizer, int rank);

enum class Restore {
  kAll,     // to go on training
  kWeights  // to evaluate
};

/// Reads the state back in place, whatever the number of ranks or the Plan that saved it. Errors:
/// those of the reader, which name the tensor.
void restore(CheckpointReader& reader, Network& network, const dense::AdamW& optimizer,
             Restore what);

}  // namespace tautline::train
