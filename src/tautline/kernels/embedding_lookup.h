// Rows of an embedding table by id, one by one or pooled, and the initial values of a table.
//
// Shapes: R rows of the table, E columns, N ids, B bags. Rows are contiguous, E may be any number.
// Id -1 means "none" and reads as a row of zeros; any other id outside [0, R) is an error of the
// caller: ops/ refuses it on the CPU with the id and R in the message; the CUDA kernels print the
// same and trap. Conversions round to nearest even; sums are in FP32, in the order of the ids.
#pragma once

#include <cstdint>

#include "tautline/kernels/element.h"
#include "tautline/kernels/isa.h"

namespace tautline::kernels {

/// out[n, :] = table[rows[n], :].
struct Lookup {
  const void* table = nullptr;  // [R, E]
  Element table_type = Element::kFloat32;
  int64_t table_rows = 0, width = 0;
  const int64_t* rows = nullptr;  // [N], in any order
  int64_t count = 0;
  void* out = nullptr;  // [N, E]
  Element out_type = Element::kFloat32;
  void* stream = nullptr;
};

/// out[b, :] = sum (or mean) over n in [offsets[b], offsets[b+1]) of table[rows[n], :].
/// An empty bag gives zeros; the mean divides by the length of the bag, ids -1 included.
struct PooledLookup {
  Lookup lookup;                     // `count` is N; `out` is [B, E]
  const int64_t* offsets = nullptr;  // [B + 1], offsets[B] = N
  int64_t bags = 0;
  bool mean = false;
};

/// The gradient of PooledLookup for each id: out[n, :] = gradients[bag of n, :] (/ length).
struct PooledGradients {
  const void* gradients = nullptr;  // [B, E]
  void* out = nullptr;              // [N, E], same type
  Element type = Element::kFloat32;
  const int64_t* offsets = nullptr;
  int64_t bags = 0, width = 0;
  bool mean = false;
  void* stream = nullptr;
};

/// table[r, c] = std x normal(seed, table_index, first_row + r x stride, c) (normal.h): a shard
/// that holds rows first_row, first_row + stride, ... of the whole table. Same bits on CPU and GPU.
struct InitRows {
  void* table = nullptr;  // [R, E]
  Element type = Element::kFloat32;
  int64_t table_rows = 0, width = 0;
  uint64_t seed = 0;
  uint32_t table_index = 0;
  int64_t first_row = 0, stride = 1;
  float std = 1.0f;
  void* stream = nullptr;
};

// Double accumulation, plain loops: the oracle.
void lookup_ref(const Lookup& params);
void pooled_lookup_ref(const PooledLookup& params);

// [begin, end): ids, bags, bags, rows of the table.
TAUTLINE_ISA_KERNEL(void lookup_cpu(const Lookup& params, int64_t begin, int64_t end),
                    lookup_cpu(params, begin, end))
TAUTLINE_ISA_KERNEL(void pooled_lookup_cpu(const PooledLookup& params, int64_t begin, int64_t end),
                    pooled_lookup_cpu(params, begin, end))
TAUTLINE_ISA_KERNEL(void pooled_gradients_cpu(const PooledGradients& params, int64_t begin,
                                              int64_t end),
                    pooled_gradients_cpu(params, begin, end))
TAUTLINE_ISA_KERNEL(void init_rows_cpu(const InitRows& params, int64_t begin, int64_t end),
                    init_rows_cpu(params, begin, end))

void lookup_cuda(const Lookup& params);
void pooled_lookup_cuda(const PooledLookup& params);
void pooled_gradients_cuda(const PooledGradients& params);
void init_rows_cuda(const InitRows& params);

/// The position of the first id outside [-1, table_rows), or -1 where all are good.
int64_t find_bad_row(const int64_t* rows, int64_t count, int64_t table_rows);

}  // namespace tautline::kernels
