// From a host batch to what a step needs: the ids to look up in each table, where the rows of each
// use lie in the answer, and the tensors of the dense part, on the device.
//
// One lookup per table and step. In the head's table a target that is the next token of its sample
// shares that token's row: only targets past the end of a sample, and the step's negatives, add
// ids.
//
// S samples, T tokens, N targets, M negatives, I ids of a table.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tautline/data/read/batch.h"
#include "tautline/workload/model.h"

namespace tautline::models {

struct Inputs {
  int64_t samples = 0, tokens = 0, targets = 0;  // of this rank
  int64_t global_targets = 0;                    // over all ranks
  int64_t most_tokens = 0;  // of any rank: how many targets a rank can have at most
  int64_t longest = 0;      // tokens of the longest sample
  at::Tensor offsets;       // [S + 1] int64
  at::Tensor order;         // of attention's tiles, for all layers; undefined on the CPU
  at::Tensor sample;        // [T] int64: the sample's index in the step's fixed set; keys dropout
  at::Tensor position;      // [T] int64: place inside the sample
  at::Tensor time_gap;      // [T] int64 bucket; undefined where the model has no time gaps
  at::Tensor time;          // [T] int64 seconds; undefined where no attention bias wants them
  std::map<std::string, at::Tensor> ids;       // [I] int64 by table, known to lie in it
  std::map<std::string, int64_t> feature_row;  // first of a feature's T rows in its table's
  at::Tensor target_token;   // [N] int64: who predicts; undefined where every token does
  at::Tensor target_id;      // [N] int64
  at::Tensor target_row;     // [N] int64 in the head table's rows; undefined where no head asks
  at::Tensor negative_id;    // [M] int64, on every rank the same; undefined without negatives
  int64_t negative_row = 0;  // first of the M rows
  // With a repeat bias: the items of each sample at their first events, and where in that list the
  // history of each target begins and ends.
  at::Tensor repeat_id;                     // [R] int64, R <= T
  at::Tensor repeat_first, repeat_last;     // [N] int64
  std::map<std::string, at::Tensor> label;  // [N] FP32 by binary head
};

/// The next-item head, or null.
const HeadConfig* next_item_head(const ModelConfig& model);

/// The table whose rows of the target item some head asks for (sampled softmax, a binary head with
/// a candidate); empty: none.
std::string target_table(const ModelConfig& model);

/// The column of the built log that a feature reads.
const std::string& column_of(const FeatureConfig& feature);

/// The column that holds a binary head's label.
std::string label_of(const std::string& name, const HeadConfig& head);

/// Bucket of the time between an event and the one before: floor((buckets / 32) log2(1 + seconds)),
/// at most the last; 0 at the start of a sample.
int64_t time_gap_bucket(int64_t seconds, int64_t buckets);

/// M item ids uniform over [1, classes], drawn by (seed, step).
std::vector<int64_t> draw_negatives(int64_t negatives, int64_t classes, uint64_t seed,
                                    int64_t step);

class InputBuilder {
 public:
  /// classes: items that can be predicted (ids 1..classes).
  InputBuilder(const ModelConfig& model, int64_t classes, uint64_t seed, at::Device device)
      : model_(model), classes_(classes), seed_(seed), device_(device) {}

  /// UserError: an id beyond its table.
  Inputs training(const data::Batch& batch) const;

  /// The token that predicts is each sample's last; target rows are looked up only for binary
  /// heads.
  Inputs evaluation(const data::EvaluationBatch& batch) const;

 private:
  ModelConfig model_;
  int64_t classes_;
  uint64_t seed_;
  at::Device device_;
};

}  // namespace tautline::models
