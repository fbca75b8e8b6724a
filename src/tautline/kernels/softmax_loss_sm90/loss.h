// Softmax losses on Hopper (sm_90a) whose logits never reach memory: N rows h against V items, E
// multiples of 8 up to 256, bf16 and fp16.
//
//   x_rj = h_r . items_j * scale - log_q_j, and -inf where column_id_j == row_id_r (hits)
// Statistics: max_r = max_j x_rj, sum_r = sum_j exp(x_rj - max_r), target_logit_r = x_r,target(r).
// Gradients of weight * sum_r (lse_r - x_r,target(r)), lse_r = max_r + log(sum_r) unless given,
// with respect to h.items (scale is in `weight`):
//   d_h_r     = weight * (sum_j exp(x_rj - lse_r) items_j - items_target(r))
//   d_items_j = weight * (sum_r exp(x_rj - lse_r) h_r     - sum of h_r where target(r) == j)
// A class that is not among the columns (the positive of a sampled softmax) enters through `extra`:
// one more logit a row, already scaled and corrected. Where every logit of a row is -inf, its
// exponentials count as 0.
//
// Two passes, each two products a pair of tiles, like attention whose keys and values are the same:
// in the first, tiles of rows stay and blocks of items stream; in the second, tiles of items stay
// and blocks of rows stream, so no two sums meet in memory. Logits are computed twice (8 N V E FLOP
// in all, not 6); what is read and written is a few N E and V E. Where items are few, the rows are
// split among CTAs, and their sums in FP32 are added afterwards, in order: the same bits in every
// run on one kind of card.
//
// Precision: sums in FP32; exponentials are 16-bit operands of the second products, in the first
// pass relative to the row's maximum (within 8 octaves), in the second 2^10 exp(x - lse), so that
// fp16, which ends at 6e-8, has room for small ones.
#pragma once

#include <cstdint>

#include "tautline/kernels/element.h"

namespace tautline::kernels {

struct SoftmaxLossSm90 {
  const void *h = nullptr, *items = nullptr;  // [N, E], [V, E] in `element`; aligned to 16 bytes
  const float* log_q = nullptr;               // [V] or null
  const int64_t* column_id = nullptr;         // [V] or null
  const int64_t* row_id = nullptr;            // [N] or null, as column_id
  const int64_t* target = nullptr;            // [N] in [-1, V), -1: not among the columns; or null
  const float* extra = nullptr;               // [N] or null
  const float* lse = nullptr;            // [N] of all shards, or null: of these columns and extra
  float *max = nullptr, *sum = nullptr;  // [N]: written where lse is null (with `extra` in it)
  float* target_logit = nullptr;         // [N]: likewise; left alone where target is -1
  void* d_h = nullptr;                   // [N, E] in `element`; null: statistics only
  void* d_items = nullptr;  // [V, E] in items_element; null: not wanted, as without d_h
  int64_t rows = 0, classes = 0, width = 0;  // N, V, E: at most 2^30, 2^30, 256
  float scale = 1;                           // 1 / temperature, above 0
  float weight = 1;
  Element element = Element::kBFloat16;  // or kFloat16
  Element items_element = Element::kBFloat16;
  void* workspace = nullptr;  // softmax_loss_sm90_workspace bytes, aligned to 128
  int32_t multiprocessors = 132;
  void* stream = nullptr;
};

/// Why the kernels do not take the problem, or null. (The card is the caller's business.)
const char* softmax_loss_sm90_refuses(const SoftmaxLossSm90& p);

int64_t softmax_loss_sm90_workspace(const SoftmaxLossSm90& p);

void softmax_loss_sm90(const SoftmaxLossSm90& p);

}  // namespace tautline::kernels
