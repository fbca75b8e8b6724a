#include "tautline/ops/softmax_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "tautline/base/error.h"
#include "tautline/kernels/softmax.h"
#include "tautline/ops/support.h"

namespace tautline::ops {
namespace {

/// Rows of a chunk: its logits fill about 2 MB of cache on the CPU, 256 MB of memory on CUDA.
int64_t chunk_rows(const at::Tensor& items) {
  const int64_t elements = items.is_cpu() ? int64_t{1} << 19 : int64_t{1} << 27;
  return std::clamp<int64_t>(elements / std::max<int64_t>(1, items.size(0)), 16, 1 << 14);
}

void run_statistics(const kernels::SoftmaxRows& p, const at::Tensor& on) {
  if (on.is_cpu()) {
    parallel(p.rows, 4 * p.classes,
             [&](int64_t i, int64_t j) { kernels::softmax_statistics_cpu(p, i, j); });
  } else {
    if constexpr (kCudaBuild) kernels::softmax_statistics_cuda(p);
  }
}
void run_gradient(const kernels::SoftmaxRows& p, const at::Tensor& on) {
  if (on.is_cpu()) {
    parallel(p.rows, 4 * p.classes,
             [&](int64_t i, int64_t j) { kernels::softmax_gradient_cpu(p, i, j); });
  } else {
    if constexpr (kCudaBuild) kernels::softmax_gradient_cuda(p);
  }
}

const int64_t* ids(const std::optional<at::Tensor>& x, int64_t first = 0) {
  return x ? x->const_data_ptr<int64_t>() + first : nullptr;
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
  p.element = element_of(logits);
  p.stream = stream_of(logits);
  return p;
}

}  // namespace

SoftmaxResult softmax_rows(const SoftmaxProblem& problem) {
  const at::Tensor h = readable(problem.h), items = readable(problem.items);
  const int64_t rows = h.size(0), classes = items.size(0), chunk = chunk_rows(items);
  SoftmaxResult result{at::zeros({rows}, float_like(h)),
                       at::zeros({rows}, float_like(h)),
                       at::zeros({rows}, float_like(h)),
                       {},
                       {}};
  at::Tensor d_items;
  if (problem.gradient) {
    result.d_h = at::zeros_like(h);
    d_items = at::zeros(items.sizes(), float_like(items));
  }
  at::Tensor buffer = at::empty({std::min(rows, chunk), classes}, h.options());
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t count = std::min(chunk, rows - first);
    const at::Tensor part = h.narrow(0, first, count);
    at::Tensor logits = buffer.narrow(0, 0, count);
    if (classes > 0) at::mm_out(logits, part, items.t());
    kernels::SoftmaxRows p = chunk_params(problem, result, logits, first);
    at::Tensor lse;
    if (!problem.lse) {
      run_statistics(p, h);
      lse = result.max.narrow(0, first, count) + result.sum.narrow(0, first, count).log();
    } else {
      lse = problem.lse->narrow(0, first, count).contiguous();
    }
    if (!problem.gradient || classes == 0) continue;
    p.lse = lse.const_data_ptr<float>();
    run_gradient(p, h);
    at::Tensor d_part = result.d_h.narrow(0, first, count);
    at::mm_out(d_part, logits, items);
    if (d_items.scalar_type() == logits.scalar_type()) {
      d_items.addmm_(logits.t(), part);
    } else {
      d_items.add_(at::mm(logits.t(), part));
    }
  }
  if (problem.gradient) {
    result.d_h = result.d_h.to(problem.h.scalar_type());
    result.d_items = d_items.to(problem.items.scalar_type());
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
