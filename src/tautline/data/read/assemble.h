// From decoded events to jagged batches: copies of contiguous runs, nothing else, so that one
// thread makes well over 10^8 tokens/s.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tautline/data/read/batch.h"
#include "tautline/data/read/event_block.h"
#include "tautline/data/read/sampling.h"

namespace tautline::data {

/// Which decoded column goes where in a batch: names and positions in EventColumns.
struct ColumnRoles {
  struct Role {
    std::string name;
    size_t position;
  };
  std::vector<Role> categorical, dense, labels;
};

/// The columns to decode for these roles; a column that is dense and label is decoded once.
struct ColumnChoice {
  EventColumns columns;
  ColumnRoles roles;
};
ColumnChoice choose_columns(const std::vector<std::string>& categorical,
                            const std::vector<std::string>& dense,
                            const std::vector<std::string>& labels);

/// Where a sample's events lie.
struct Located {
  const EventBlock* block;
  int64_t row;  // inside the block
};

/// Fills the per-sample and per-token vectors of an empty batch. samples, places and index (of each
/// sample inside its step) have one entry a sample.
void assemble(const std::vector<Sample>& samples, const std::vector<Located>& places,
              const std::vector<int64_t>& index, const ColumnRoles& roles, Batch& batch);

/// Appends one user to evaluate: `known` leading events of the row are history, the next one is to
/// be predicted.
void append_evaluated(int64_t user, const Located& place, int64_t known, int64_t max_length,
                      const ColumnRoles& roles, EvaluationBatch& batch);

}  // namespace tautline::data
