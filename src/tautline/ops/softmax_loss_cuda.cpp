#include "tautline/ops/softmax_loss_cuda.h"

#include <ATen/cuda/CUDAContext.h>

#include "tautline/kernels/softmax_loss_sm90/loss.h"
#include "tautline/ops/support.h"

namespace tautline::ops {
namespace {

const int64_t* ids(const std::optional<at::Tensor>& x) {
  return x ? x->const_data_ptr<int64_t>() : nullptr;
}

}  // namespace

bool softmax_loss_cuda(const SoftmaxProblem& problem, const at::Tensor& h, const at::Tensor& items,
                       SoftmaxResult& result) {
  const cudaDeviceProp* card = at::cuda::getDeviceProperties(h.get_device());
  if (card->major != 9 || card->minor != 0 || problem.repeats.defined()) return false;
  const at::ScalarType type = problem.items.scalar_type();  // of d_items: h's or FP32
  if (type != h.scalar_type() && type != at::kFloat) return false;
  kernels::SoftmaxLossSm90 p;
  p.h = h.const_data_ptr();
  p.items = items.const_data_ptr();
  p.log_q = float_data(problem.log_q);
  p.column_id = ids(problem.column_id);
  p.row_id = ids(problem.row_id);
  p.target = ids(problem.target);
  p.extra = float_data(problem.extra);
  p.lse = float_data(problem.lse);
  p.max = result.max.mutable_data_ptr<float>();
  p.sum = result.sum.mutable_data_ptr<float>();
  p.target_logit = result.target_logit.mutable_data_ptr<float>();
  p.rows = h.size(0);
  p.classes = items.size(0);
  p.width = h.size(1);
  p.scale = static_cast<float>(1 / problem.temperature);
  p.weight = static_cast<float>(problem.weight / problem.temperature);
  p.element = element_of(h);
  p.items_element = element_of(problem.items);
  p.multiprocessors = card->multiProcessorCount;
  p.stream = stream_of(h);
  if (kernels::softmax_loss_sm90_refuses(p)) return false;
  if (problem.gradient) {
    result.d_h = at::empty(h.sizes(), h.options());
    result.d_items = at::empty(items.sizes(), problem.items.options());
    p.d_h = result.d_h.mutable_data_ptr();
    p.d_items = result.d_items.mutable_data_ptr();
  }
  at::Tensor workspace =
      at::empty({kernels::softmax_loss_sm90_workspace(p)}, h.options().dtype(at::kByte));
  p.workspace = workspace.mutable_data_ptr();
  kernels::softmax_loss_sm90(p);
  return true;
}

}  // namespace tautline::ops
