// The gradients that a loss made with its forward, times what comes from above.
#include <ATen/TensorOperators.h>
#include <torch/library.h>

#include "tautline/kernels/scale.h"
#include "tautline/ops/loss_parts.h"
#include "tautline/ops/on_its_device.h"

namespace tautline::ops {
namespace {

Tensor scale_gradient(const Tensor& gradient, const Tensor& by) {
  if (gradient.is_cpu()) return gradient * by.item();  // not rounded to the gradient's type
  const Tensor factor = by.to(at::kFloat);
  const Tensor x = gradient.contiguous(), y = at::empty(x.sizes(), x.options());
  kernels::Scale p;
  p.x = x.const_data_ptr();
  p.a = factor.const_data_ptr<float>();
  p.y = y.mutable_data_ptr();
  p.count = x.numel();
  p.element = element_of(x);
  p.stream = stream_of(x);
  if constexpr (kCudaBuild) kernels::scale_cuda(p);
  return y;
}

Tensor scale_gradient_meta(const Tensor& gradient, const Tensor&) {
  return at::empty_symint(gradient.sym_sizes(), gradient.options());
}

}  // namespace

Tensor scaled(const Tensor& gradient, const Tensor& by) {
  static const auto op = find_operator<decltype(scale_gradient)>("tautline::scale_gradient");
  return op.call(gradient, by);
}

TORCH_LIBRARY_FRAGMENT(tautline, m) {
  m.def("scale_gradient(Tensor gradient, Tensor by) -> Tensor");
}
TORCH_LIBRARY_IMPL(tautline, CPU, m) { m.impl("scale_gradient", scale_gradient); }
TORCH_LIBRARY_IMPL(tautline, CUDA, m) { m.impl("scale_gradient", on_its_device<scale_gradient>); }
TORCH_LIBRARY_IMPL(tautline, Meta, m) { m.impl("scale_gradient", scale_gradient_meta); }

}  // namespace tautline::ops
