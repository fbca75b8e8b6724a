// Boxes of a jagged tensor's rows (hopper_map.h) in shared memory, of which nothing may exist.
#pragma once

#include "tautline/kernels/hopper.cuh"

namespace tautline::kernels::hopper {

constexpr int kMostBoxRows = 128;

/// What takes the place of a box without rows or columns: a load of one that lies outside its tensor
/// altogether ends in an illegal address now and then (seen on an H200, in whatever dimension).
static __device__ uint4 nothing[kMostBoxRows * 128 / sizeof(uint4)];

/// Rows [row, row + count) of a head as the first of kRows, columns [column, column + 64) of `width`;
/// what lies beyond is 0. Brings kRows * 128 bytes to `full`. At most kRows rows; none where count <= 0.
template <int kRows>
__device__ __forceinline__ void load_box(const CUtensorMap& map, uint64_t* full, void* to,
                                         int column, int width, int row, int count, int head) {
  static_assert(kRows <= kMostBoxRows);
  if (count > 0 && column < width)
    tma_load(&map, full, to, column, kRows - count, row + count, head);
  else
    bulk_load(to, nothing, kRows * 128, full);
}

}  // namespace tautline::kernels::hopper
