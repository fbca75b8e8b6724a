// Hashed tables: an id of any size, without a vocabulary, becomes one row in each of `ways`
// sub-tables; their rows, each E / ways wide, are concatenated. Two ids share all their rows with
// probability rows^-ways (compositional embeddings; the multi-hash tables of large foundation
// models).
//
// The hash is XXH64's final avalanche (github.com/Cyan4973/xxHash, doc/xxhash_spec.md, "final mix")
// over id + (way + 1) * 0x9E3779B97F4A7C15, modulo the rows after the top bit is dropped. It
// depends on nothing else: no seed, no rank, so a checkpoint keeps its meaning.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tautline::embedding {

inline uint64_t avalanche(uint64_t h) {
  h = (h ^ (h >> 33)) * 0xC2B2AE3D27D4EB4Full;
  h = (h ^ (h >> 29)) * 0x165667B19E3779F9ull;
  return h ^ (h >> 32);
}

/// Row in [0, rows) of sub-table `way`.
inline int64_t hash_row(int64_t id, int64_t way, int64_t rows) {
  const uint64_t start =
      static_cast<uint64_t>(id) + (static_cast<uint64_t>(way) + 1) * 0x9E3779B97F4A7C15ull;
  return static_cast<int64_t>((avalanche(start) & 0x7FFFFFFFFFFFFFFFull) %
                              static_cast<uint64_t>(rows));
}

/// ids [n] int64 on any device -> [n * ways]: way w's row of id i, plus w * rows, at i * ways + w.
at::Tensor hash_rows(const at::Tensor& ids, int64_t ways, int64_t rows);
/// The form in tensor operators that other devices take; the same rows.
at::Tensor hash_rows_generic(const at::Tensor& ids, int64_t ways, int64_t rows);

}  // namespace tautline::embedding
