#include "tautline/ops/softmax_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "tautline/base/error.h"
#include "tautline/kernels/softmax.h"
#include "tautline/kernels/softmax_loss.h"
#include "tautline/ops/softmax_loss_cuda.h"
#include "tautline/ops/support.h"

namespace tautline::ops {
namespace {

/// Rows of a chunk on CUDA: its logits fill at most 256 MB. Few chunks: on 1,024 classes 131,072 rows
/// make 1.88 ms of what 16,384, whose logits stay in L2, make 2.15.
int64_t chunk_rows(int64_t classes) {
  return std::clamp<int64_t>((int64_t{1} << 27) / std::max<int64_t>(1, classes), 16, 1 << 17);
}

const int64_t* ids(const std::optional<at::Tensor>& x, int64_t first = 0) {
  return x ? x->const_data_ptr<int64_t>() + first : nullptr;
}

/// Rows from `first` on.
kernels::RepeatBias repeat_bias(const SoftmaxProblem& problem, const SoftmaxResult& result,
                                int64_t first = 0) {
  kernels::RepeatBias p;
  if (!problem.repeats.defined()) return p;
  p.first = problem.repeats.first.const_data_ptr<int64_t>() + first;
  p.last = problem.repeats.last.const_data_ptr<int64_t>() + first;
  p.column = problem.repeats.column.const_data_ptr<int64_t>();
  p.bias = problem.repeats.bias.const_data_ptr<float>();
  if (result.d_bias.defined()) p.d_bias = result.d_bias.mutable_data_ptr<float>() + first;
  return p;
}

kernels::SoftmaxRows chunk_params(const SoftmaxProblem& problem, const SoftmaxResult& result,
                                  at::Tensor& logits, int64_t first) {
  kernels::SoftmaxRows p;
  p.logits = logits.mutable_data_ptr();
  p.row_stride = logits.size(1);
  p.rows = logits.size(0);
  p.classes = logits.size(1);
  p.log_q = float_data(problem.log_q);
  p.column_id = ids(problem.column_id);
  p.row_id = ids(problem.row_id, first);
  p.target = ids(problem.target, first);
  p.extra = problem.extra ? problem.extra->const_data_ptr<float>() + first : nullptr;
  p.max = result.max.mutable_data_ptr<float>() + first;
  p.sum = result.sum.mutable_data_ptr<float>() + first;
  p.target_logit = result.target_logit.mutable_data_ptr<float>() + first;
  p.scale = 1 / problem.temperature;
  p.weight = problem.weight / problem.temperature;
  p.repeat = repeat_bias(problem, result, first);
  p.element = element_of(logits);
  p.stream = stream_of(logits);
  return p;
}

}  // namespace

namespace {

/// The fused kernel wants E a multiple of 16.
at::Tensor padded(const at::Tensor& x) {
  const int64_t missing = (16 - x.size(1) % 16) % 16;
  return missing == 0 ? x : at::constant_pad_nd(x, {0, missing});
}

kernels::SoftmaxLoss fused_params(const SoftmaxProblem& problem, const SoftmaxResult& result,
                                  const at::Tensor& h, const at::Tensor& items) {
  kernels::SoftmaxLoss p;
  p.h = h.const_data_ptr<float>();
  p.items = items.const_data_ptr<float>();
  p.log_q = float_data(problem.log_q);
  p.column_id = ids(problem.column_id);
  p.row_id = ids(problem.row_id);
  p.target = ids(problem.target);
  p.extra = float_data(problem.extra);
  p.lse = float_data(problem.lse);
  p.rows = h.size(0);
  p.classes = items.size(0);
  p.width = h.size(1);
  p.scale = 1 / problem.temperature;
  p.weight = problem.weight;
  p.repeat = repeat_bias(problem, result);
  p.max = result.max.mutable_data_ptr<float>();
  p.sum = result.sum.mutable_data_ptr<float>();
  p.target_logit = result.target_logit.mutable_data_ptr<float>();
  // Eight blocks a chunk keep up to eight threads busy; fewer where their scores would pass 8 MB.
  const int64_t columns = std::max<int64_t>(1, p.panels()) * kernels::kLossPanel;
  const int64_t blocks = std::clamp<int64_t>((1 << 21) / (columns * kernels::kLossRows), 1, 8);
  p.chunk = blocks * kernels::kLossRows;
  return p;
}

void run_fused(const kernels::SoftmaxLoss& p) {
  constexpr int64_t kAlways = 1 << 20;  // cost of a task: each is worth a thread
  parallel(p.panels(), kernels::kLossPanel * p.width,
           [&](int64_t i, int64_t j) { kernels::softmax_loss_pack_cpu(p, i, j); });
  for (int64_t first = 0; first < p.rows; first += p.chunk) {
    const int64_t rows = std::min(p.chunk, p.rows - first);
    const int64_t blocks = (rows + kernels::kLossRows - 1) / kernels::kLossRows;
    parallel(blocks, kAlways,
             [&](int64_t i, int64_t j) { kernels::softmax_loss_rows_cpu(p, first, i, j); });
    if (!p.d_items) continue;
    parallel(p.panels(), kernels::kLossPanel * rows * 4,
             [&](int64_t i, int64_t j) { kernels::softmax_loss_items_cpu(p, first, i, j); });
  }
}

void softmax_rows_cpu(const SoftmaxProblem& problem, SoftmaxResult& result) {
  const at::Tensor h = padded(readable(problem.h)), items = padded(readable(problem.items));
  kernels::SoftmaxLoss p = fused_params(problem, result, h, items);
  const auto options = h.options();
  at::Tensor packed = at::empty({p.panels(), p.width, kernels::kLossPanel}, options);
  at::Tensor scores = at::empty({p.panels(), p.chunk, kernels::kLossPanel}, options);
  at::Tensor scaled = at::empty({p.chunk, p.width}, options), d_h, d_items;
  p.packed = packed.mutable_data_ptr<float>();
  p.scores = scores.mutable_data_ptr<float>();
  p.scaled_h = scaled.mutable_data_ptr<float>();
  if (problem.gradient) {
    d_h = at::empty(h.sizes(), options);
    d_items = at::zeros(items.sizes(), options);
    p.d_h = d_h.mutable_data_ptr<float>();
    p.d_items = d_items.mutable_data_ptr<float>();
  }
  run_fused(p);
  if (!problem.gradient) return;
  const auto unpadded = [](const at::Tensor& x, const at::Tensor& like) {
    return x.narrow(1, 0, like.size(1)).to(like.scalar_type()).contiguous();
  };
  result.d_h = unpadded(d_h, problem.h);
  result.d_items = unpadded(d_items, problem.items);
}

void softmax_rows_cuda(const SoftmaxProblem& problem, SoftmaxResult& result) {
  // The products run in h's type: rows of a table are FP32 beside bf16 activations.
  const at::Tensor h = readable(problem.h);
  const at::Tensor items = readable(problem.items).to(h.scalar_type());
  if constexpr (kCudaBuild)
    if (softmax_loss_cuda(problem, h, items, result)) return;
  const int64_t rows = h.size(0), classes = items.size(0), chunk = chunk_rows(classes);
  at::Tensor d_items;
  if (problem.gradient) {
    result.d_h = at::zeros(h.sizes(), h.options());
    d_items = at::zeros(items.sizes(), float_like(items));
  }
  at::Tensor buffer = at::empty({std::min(rows, chunk), classes}, h.options());
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t count = std::min(chunk, rows - first);
    const at::Tensor part = h.narrow(0, first, count);
    at::Tensor logits = buffer.narrow(0, 0, count), lse;
    if (classes > 0) at::mm_out(logits, part, items.t());
    kernels::SoftmaxRows p = chunk_params(problem, result, logits, first);
    if constexpr (kCudaBuild)
      if (p.repeat.first && classes > 0) kernels::repeat_bias_add_cuda(p);
    if (problem.lse) {
      lse = problem.lse->narrow(0, first, count).contiguous();
    } else {
      if constexpr (kCudaBuild) kernels::softmax_statistics_cuda(p);
      lse = result.max.narrow(0, first, count) + result.sum.narrow(0, first, count).log();
    }
    if (!problem.gradient || classes == 0) continue;
    p.lse = lse.const_data_ptr<float>();
    if constexpr (kCudaBuild) {
      kernels::softmax_gradient_cuda(p);
      if (p.repeat.first) kernels::repeat_bias_sum_cuda(p);
    }
    at::Tensor d_part = result.d_h.narrow(0, first, count);
    at::mm_out(d_part, logits, items);
    d_items.add_(at::mm(logits.t(), part));
  }
  if (problem.gradient) result.d_items = d_items.to(problem.items.scalar_type());
}

}  // namespace

SoftmaxResult softmax_rows(const SoftmaxProblem& problem) {
  const auto row = [&] { return at::zeros({problem.h.size(0)}, float_like(problem.h)); };
  SoftmaxResult result{row(), row(), row(), {}, {}, {}};
  if (problem.gradient && problem.repeats.defined()) result.d_bias = row();
  if (problem.h.is_cpu()) {
    softmax_rows_cpu(problem, result);
  } else {
    softmax_rows_cuda(problem, result);
  }
  return result;
}

std::tuple<at::Tensor, at::Tensor> l2_normalize_forward(const at::Tensor& x) {
  if (x.dim() != 2) throw user_error("l2_normalize: x ", x.sizes(), " is not [N, E]");
  const at::Tensor in = readable(x);
  at::Tensor y = at::empty(in.sizes(), in.options());
  at::Tensor norm = at::empty({x.size(0)}, float_like(x));
  kernels::L2Normalize p;
  p.x = in.const_data_ptr();
  p.y = y.mutable_data_ptr();
  p.norm = norm.mutable_data_ptr<float>();
  p.rows = x.size(0);
  p.width = x.size(1);
  p.element = element_of(in);
  p.stream = stream_of(x);
  if (x.is_cpu()) {
    parallel(p.rows, p.width,
             [&](int64_t i, int64_t j) { kernels::l2_normalize_forward_cpu(p, i, j); });
  } else if (x.numel() > 0) {
    if constexpr (kCudaBuild) kernels::l2_normalize_forward_cuda(p);
  }
  return {y.to(x.scalar_type()), norm};
}

at::Tensor l2_normalize_backward(const at::Tensor& d_y, const at::Tensor& y,
                                 const at::Tensor& norm) {
  const at::Tensor in = readable(y), d_in = readable(d_y);
  at::Tensor d_x = at::empty(in.sizes(), in.options());
  kernels::L2Normalize p;
  p.y = const_cast<void*>(in.const_data_ptr());
  p.norm = const_cast<float*>(norm.const_data_ptr<float>());
  p.d_y = d_in.const_data_ptr();
  p.d_x = d_x.mutable_data_ptr();
  p.rows = y.size(0);
  p.width = y.size(1);
  p.element = element_of(in);
  p.stream = stream_of(y);
  if (y.is_cpu()) {
    parallel(p.rows, p.width,
             [&](int64_t i, int64_t j) { kernels::l2_normalize_backward_cpu(p, i, j); });
  } else if (y.numel() > 0) {
    if constexpr (kCudaBuild) kernels::l2_normalize_backward_cuda(p);
  }
  return d_x.to(y.scalar_type());
}

}  // namespace tautline::ops
