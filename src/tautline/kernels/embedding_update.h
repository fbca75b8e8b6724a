// From the gradients of looked-up rows to the next values of a table, in two steps that can stand
// alone (coalesce; apply) or in one (update). Exact: duplicates are summed first, then each touched
// row changes once, and no other row changes. Bitwise deterministic: no atomics on floats.
//
// Shapes: R rows of the table, E columns, N gradients, U distinct rows. Id -1 ("none") takes no
// part.
//
// The sum of one row's gradients is a function of that row's gradients in the order of their
// positions and of nothing else, neither of the batch around them nor of threads: pieces of
// kSumPiece gradients are summed in order; strand j of kSumStrands adds pieces j, j + kSumStrands,
// ... in order; the strands are added in order. All in FP32, from zero; CPU and CUDA give the same
// bits. (A row that half of a batch asks for is thereby summed by many threads.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "tautline/kernels/element.h"
#include "tautline/kernels/isa.h"

namespace tautline::kernels {

inline constexpr int64_t kSumPiece = 32, kSumStrands = 32;

/// Gradients of N looked-up rows.
struct RowGradients {
  const int64_t* rows = nullptr;    // [N] ids, -1 or in [0, table_rows)
  const void* gradients = nullptr;  // [N, E]
  Element type = Element::kFloat32;
  int64_t count = 0, width = 0, table_rows = 0;
  void* stream = nullptr;
};

/// What to do with the summed gradient g of a row w. `scale` multiplies g first (1 / W, a clip).
///   SGD               w <- (1 - lr decay) w - lr g
///   row-wise Adagrad  s <- s + mean_c(g_c^2);  w <- (1 - lr decay) w - lr g / (sqrt(s) + eps)
///                     (FBGEMM's EXACT_ROWWISE_ADAGRAD)
///   lazy Adam         m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;
///                     w <- (1 - lr decay) w - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) +
///                     eps) with t the step of the whole job, counted from 1 (FBGEMM's ADAM): the
///                     moments of a row rest while it is not touched
/// `decay` is decoupled weight decay (Loshchilov and Hutter 2019), of touched rows only. FP32
/// arithmetic and state; a 16-bit table is rounded to nearest even after the change.
struct RowUpdate {
  enum class Kind { kSgd, kRowwiseAdagrad, kAdam };
  Kind kind = Kind::kRowwiseAdagrad;
  void* table = nullptr;  // [R, E]
  Element table_type = Element::kFloat32;
  int64_t table_rows = 0, width = 0;
  float* state = nullptr;                        // Adagrad: [R]
  float *moment1 = nullptr, *moment2 = nullptr;  // Adam: [R, E]
  float lr = 0, eps = 0, decay = 0, scale = 1, beta1 = 0, beta2 = 0;
  int64_t step = 1;  // Adam
  void* stream = nullptr;
};

/// Distinct rows in ascending order and where each one's positions stand in `order`.
struct RowRuns {
  const int64_t* order = nullptr;   // [N] positions, by (row, position)
  const int64_t* rows = nullptr;    // [U]
  const int64_t* starts = nullptr;  // [U + 1] in `order`
  int64_t count = 0;                // U
};

/// Plain loops in double: sums [U, E] for `runs`, and the update of one row by its sum in double.
void sum_rows_ref(const RowGradients& gradients, const RowRuns& runs, double* sums);
void apply_row_ref(const RowUpdate& update, int64_t row, const double* sum);

/// CPU: the stable sort. `order`, `rows` have N places, `starts` N + 1; returns U. Ids -1 are left
/// out.
int64_t sort_rows_cpu(const int64_t* ids, int64_t count, int64_t table_rows, int64_t* order,
                      int64_t* rows, int64_t* starts);

// [begin, end): distinct rows. sum: sums [U, E]. apply: by sums. update: both, nothing stored
// between.
TAUTLINE_ISA_KERNEL(void sum_rows_cpu(const RowGradients& gradients, const RowRuns& runs,
                                      float* sums, int64_t begin, int64_t end),
                    sum_rows_cpu(gradients, runs, sums, begin, end))
TAUTLINE_ISA_KERNEL(void apply_rows_cpu(const RowUpdate& update, const int64_t* rows,
                                        const float* sums, int64_t begin, int64_t end),
                    apply_rows_cpu(update, rows, sums, begin, end))
TAUTLINE_ISA_KERNEL(void update_rows_cpu(const RowUpdate& update, const RowGradients& gradients,
                                         const RowRuns& runs, int64_t begin, int64_t end),
                    update_rows_cpu(update, gradients, runs, begin, end))

// CUDA. N and R below 2^32 - 1 (a UserError beyond). `workspace` holds what update_workspace_bytes
// says, aligned to 256 bytes. Nothing waits for the device.
size_t update_workspace_bytes(int64_t count, int64_t width, int64_t table_rows);

/// rows [N] (U of them written), sums [N, E] (U rows written), *distinct = U, all on the device.
void coalesce_cuda(const RowGradients& gradients, int64_t* rows, float* sums, int64_t* distinct,
                   void* workspace);
/// `distinct`: null, or U on the device (then `count` is the capacity of rows and sums).
void apply_rows_cuda(const RowUpdate& update, const int64_t* rows, const float* sums, int64_t count,
                     const int64_t* distinct);
/// SGD and row-wise Adagrad: coalesce and apply without storing the sums, the same bits.
void update_rows_cuda(const RowUpdate& update, const RowGradients& gradients, void* workspace);

}  // namespace tautline::kernels
