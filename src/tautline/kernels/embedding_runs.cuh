// Sorted ids on the GPU: what embedding_runs.cu makes and embedding_update.cu reads. Positions,
// rows and counts are 32 bits wide here: half the bytes of a sort. N and R below 2^32 - 1 are
// checked on the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#include "tautline/kernels/embedding_update.h"

namespace tautline::kernels {

/// At most kSumPiece positions of a run that is longer than that.
struct Piece {
  uint32_t start, count;
};

/// A run of more than kSumPiece positions: which of the distinct rows, and its pieces.
struct LongRun {
  uint32_t run, first_piece, pieces;
};

struct RunCounts {
  uint32_t runs;    // U
  uint32_t none;    // ids -1; they sort behind all rows
  uint32_t pieces;  // of long runs
  uint32_t longs;
};

/// All on the device. `order` and `keys` are in the order of (row, position).
struct DeviceRuns {
  uint32_t count = 0;               // N
  const uint32_t* order = nullptr;  // [N] positions
  const uint32_t* keys = nullptr;   // [N] rows
  uint32_t* starts = nullptr;       // [U]
  RunCounts* counts = nullptr;
  Piece* pieces = nullptr;    // [counts->pieces], pieces of a run stand together
  LongRun* longs = nullptr;   // [counts->longs]; which comes first varies, what each says does not
  float* partials = nullptr;  // [counts->pieces, E]
};

/// Sorts and finds the runs; `find_long` also fills pieces and longs.
DeviceRuns make_runs(const RowGradients& gradients, void* workspace, bool find_long);

}  // namespace tautline::kernels
