// A softmax loss over N rows and V classes on the CPU, fused: the logits of a few rows are made,
// turned into exp(x - max) and used for both gradients while they lie in cache.
//
//   x_rj = (h_r . items_j + repeat bias) * scale - log_q_j, -inf where column_id_j == row_id_r
//   p_rj = exp(x_rj - max_r) / sum_r   (with `lse` given: exp(x_rj - lse_r))
//   d_h_r = sum_j (p_rj - [j == target_r]) weight * scale * items_j;  d_items_j likewise from h_r
//
// Order of work, all parts bitwise the same however they are dealt to threads:
//   pack      panels [begin, end) of kLossPanel classes: items transposed, [E][kLossPanel]
//   for each chunk of `chunk` rows:
//     rows    blocks [begin, end) of kLossRows rows: logits, statistics, d_h
//     items   panels [begin, end): d_items += P' (h * factor), each panel owned by one task
// The division by sum_r is moved into the h that P' multiplies (factor), so P is written once.
//
// E must be a multiple of 16 (ops/ pads). 6 N V E operations for loss and gradients, 2 N V E for
// the statistics alone. FP32; sums of at most V / 32 terms a lane.
#pragma once

#include <cstdint>

#include "tautline/kernels/isa.h"
#include "tautline/kernels/repeat_bias.h"

namespace tautline::kernels {

inline constexpr int64_t kLossPanel = 32, kLossRows = 24;

struct SoftmaxLoss {
  const float* h = nullptr;            // [N, E]
  const float* items = nullptr;        // [V, E]
  const float* log_q = nullptr;        // [V] or null
  const int64_t* column_id = nullptr;  // [V] or null, with row_id
  const int64_t* row_id = nullptr;     // [N] or null
  const int64_t* target = nullptr;     // [N], -1: none; or null
  const float* extra = nullptr;        // [N] or null: one more logit, counted in max and sum
  const float* lse = nullptr;          // [N] or null: given from outside
  int64_t rows = 0, classes = 0, width = 0;
  double scale = 1.0, weight = 1.0;
  float* max = nullptr;  // [N]; these three are not written where lse is given
  float* sum = nullptr;
  float* target_logit = nullptr;  // [N]; left alone where target is -1
  float* d_h = nullptr;           // [N, E] or null: statistics only
  float* d_items = nullptr;       // [V, E], zero at first
  RepeatBias repeat;              // d_bias is written with d_h
  // Workspace.
  int64_t chunk = 0;          // rows, a multiple of kLossRows
  float* packed = nullptr;    // [panels, E, kLossPanel]
  float* scores = nullptr;    // [panels, chunk, kLossPanel]
  float* scaled_h = nullptr;  // [chunk, E]

  int64_t panels() const { return (classes + kLossPanel - 1) / kLossPanel; }
};

TAUTLINE_ISA_KERNEL(void softmax_loss_pack_cpu(const SoftmaxLoss& p, int64_t begin, int64_t end),
                    softmax_loss_pack_cpu(p, begin, end))
TAUTLINE_ISA_KERNEL(void softmax_loss_rows_cpu(const SoftmaxLoss& p, int64_t first_row,
                                               int64_t begin, int64_t end),
                    softmax_loss_rows_cpu(p, first_row, begin, end))
TAUTLINE_ISA_KERNEL(void softmax_loss_items_cpu(const SoftmaxLoss& p, int64_t first_row,
                                                int64_t begin, int64_t end),
                    softmax_loss_items_cpu(p, first_row, begin, end))

}  // namespace tautline::kernels
