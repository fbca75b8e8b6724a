// The heads: hidden vectors to the step's loss and what the backward starts from.
//
//   loss = sum over heads of weight / (targets of the step, over all ranks) * sum over targets
//
// Each rank gets its own part of that sum; the parts' sum over ranks is the loss, whatever the
// number of ranks.
//
// The full softmax is sharded over the vocabulary where the table is: every rank sees all hidden
// vectors of the step and its own classes. With W > 1, N targets a rank padded to P, c classes
// here:
//   gather h [W P, E]; logits' maximum, sum of exponentials and target logit over own classes;
//   combine over ranks; gradients of h [W P, E] (summed back to their ranks) and classes [c, E].
// Per step a rank sends about 2 (W - 1) P E values, whatever the vocabulary.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "tautline/comm/communicator.h"
#include "tautline/embedding/sharded_table.h"
#include "tautline/models/inputs.h"
#include "tautline/models/sequence_model.h"

namespace tautline::models {

/// This rank's classes of a table: row l is item first + l * stride. The unknown item (id 0) and
/// rows beyond the vocabulary are no classes.
struct ClassShard {
  at::Tensor rows;  // [c, E] view of the table
  int64_t first = 1, stride = 1;
  int64_t skipped = 0;  // of class_rows() before the first class
  int64_t share = 0;    // rows of class_rows()

  /// Local row of each item id [N], -1 where it is another rank's (or -1 itself).
  at::Tensor local(const at::Tensor& id) const;
};
ClassShard class_shard(const embedding::ShardedTable& table, int64_t classes);

struct Loss {
  at::Tensor value;                          // 0-dim FP32: this rank's part of the step's loss
  std::vector<at::Tensor> roots, gradients;  // where the backward starts, and with what
  at::Tensor class_gradient;                 // [share, E] of class_rows(), written by the backward;
                                             // undefined without a full softmax
};

struct LossContext {
  const SequenceModel& model;
  const embedding::ShardedTable* class_table = nullptr;  // of the next-item head
  int64_t classes = 0;                                   // items 1..classes
  comm::Communicator communicator;
};

Loss step_loss(const LossContext& context, const Inputs& inputs, const Rows& rows,
               const at::Tensor& hidden);

}  // namespace tautline::models
