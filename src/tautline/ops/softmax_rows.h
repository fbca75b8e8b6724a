// The work behind every softmax loss: logits of N rows against V classes, their statistics, and the
// gradients of h and items, without ever holding N x V numbers: chunk by chunk, or on Hopper tile by
// tile on the multiprocessors (softmax_loss_cuda.h).
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "tautline/ops/ops.h"

namespace tautline::ops {

/// x_nv = (h_n . items_v + repeat bias) / temperature - log_q_v
/// (-inf where column_id_v == row_id_n).
struct SoftmaxProblem {
  at::Tensor h, items;                                 // [N, E], [V, E]
  std::optional<at::Tensor> target = std::nullopt;     // [N] class of the row, -1: not among these
  std::optional<at::Tensor> log_q = std::nullopt;      // [V] float32
  std::optional<at::Tensor> column_id = std::nullopt;  // [V]
  std::optional<at::Tensor> row_id = std::nullopt;     // [N]
  std::optional<at::Tensor> extra = std::nullopt;      // [N] float32: one more logit a row
  std::optional<at::Tensor> lse = std::nullopt;  // [N] float32: given from outside (all shards)
  Repeats repeats = {};
  double temperature = 1.0;
  double weight = 1.0;   // of the loss in the gradients
  bool gradient = true;  // else statistics only
};

struct SoftmaxResult {
  at::Tensor max, sum, target_logit;  // [N] float32; not filled where lse was given
  at::Tensor d_h, d_items;            // as h and items; undefined without `gradient`
  at::Tensor d_bias;                  // [N] float32: the rows' parts; undefined without repeats
};

SoftmaxResult softmax_rows(const SoftmaxProblem& problem);

/// (y, norm) and the way back of y = x / max(|x|, 1e-12).
std::tuple<at::Tensor, at::Tensor> l2_normalize_forward(const at::Tensor& x);
at::Tensor l2_normalize_backward(const at::Tensor& d_y, const at::Tensor& y,
                                 const at::Tensor& norm);

}  // namespace tautline::ops
