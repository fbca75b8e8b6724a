// Where row r of a table lies. Row-wise: on rank r % W, as local row r / W. Table-wise: on the
// owner, as it is. Data-parallel: on every rank, as it is. No torch, no communication.
#pragma once

#include <cstdint>

#include "tautline/plan/plan.h"

namespace tautline::embedding {

struct Placement {
  Sharding sharding = Sharding::kRowWise;
  int64_t rows = 0;  // R, of the whole table
  int world = 1;
  int owner = 0;

  int64_t holder(int64_t row) const { return sharding == Sharding::kRowWise ? row % world : owner; }
  int64_t local(int64_t row) const { return sharding == Sharding::kRowWise ? row / world : row; }

  /// Local row l of `rank` is row first(rank) + l * stride() of the table.
  int64_t first(int rank) const { return sharding == Sharding::kRowWise ? rank : 0; }
  int64_t stride() const { return sharding == Sharding::kRowWise ? world : 1; }
  int64_t held(int rank) const {
    if (sharding == Sharding::kRowWise) return (rows - rank + world - 1) / world;
    return sharding == Sharding::kDataParallel || rank == owner ? rows : 0;
  }
  /// The most rows on a rank. holder * span() + local is a row's key: its order is (holder, local
  /// row).
  int64_t span() const { return held(sharding == Sharding::kTableWise ? owner : 0); }
};

}  // namespace tautline::embedding
