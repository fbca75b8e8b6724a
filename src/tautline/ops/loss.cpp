// l2_normalize, and binary cross entropy over the labels that are there.
#include <ATen/TensorOperators.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tautline/base/error.h"
#include "tautline/ops/loss_parts.h"
#include "tautline/ops/on_its_device.h"

namespace tautline::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Pair = std::tuple<Tensor, Tensor>;

struct Normalize : torch::autograd::Function<Normalize> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    static const auto op =
        find_operator<decltype(l2_normalize_forward)>("tautline::l2_normalize_forward");
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto [y, norm] = op.call(x);
    ctx->save_for_backward({y, norm});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    static const auto op =
        find_operator<decltype(l2_normalize_backward)>("tautline::l2_normalize_backward");
    const auto saved = ctx->get_saved_variables();
    return {op.call(gradients[0], saved[0], saved[1])};
  }
};

Tensor l2_normalize_plain(const Tensor& x) { return std::get<0>(l2_normalize_forward(x)); }

Pair normalize_meta(const Tensor& x) {
  return {gradient_meta(x, true), at::empty_symint({x.sym_size(0)}, float_like(x))};
}
Tensor normalize_backward_meta(const Tensor&, const Tensor& y, const Tensor&) {
  return gradient_meta(y, true);
}

}  // namespace

Tensor l2_normalize(const Tensor& x) { return Normalize::apply(x); }

Tensor binary_loss(const Tensor& logits, const Tensor& label) {
  if (logits.sizes() != label.sizes())
    throw user_error("binary_loss: logits ", logits.sizes(), " and label ", label.sizes(),
                     " differ in shape");
  const Tensor absent = label.isnan(), truth = label.to(at::kFloat).masked_fill(absent, 0.0);
  const Tensor loss = at::binary_cross_entropy_with_logits(
      logits.to(at::kFloat), truth, std::nullopt, std::nullopt, at::Reduction::None);
  return loss.masked_fill(absent, 0.0).sum();
}

TORCH_LIBRARY_FRAGMENT(tautline, m) {
  m.def("l2_normalize(Tensor x) -> Tensor");
  m.def("l2_normalize_forward(Tensor x) -> (Tensor, Tensor)");
  m.def("l2_normalize_backward(Tensor d_y, Tensor y, Tensor norm) -> Tensor");
  m.def("binary_loss(Tensor logits, Tensor label) -> Tensor", binary_loss);
}

namespace {
void implement(torch::Library& m) {
  m.impl("l2_normalize_forward", on_its_device<l2_normalize_forward>);
  m.impl("l2_normalize_backward", on_its_device<l2_normalize_backward>);
}
}  // namespace
TORCH_LIBRARY_IMPL(tautline, CPU, m) { implement(m); }
TORCH_LIBRARY_IMPL(tautline, CUDA, m) { implement(m); }
TORCH_LIBRARY_IMPL(tautline, Meta, m) {
  m.impl("l2_normalize_forward", normalize_meta);
  m.impl("l2_normalize_backward", normalize_backward_meta);
}
TORCH_LIBRARY_IMPL(tautline, CompositeExplicitAutograd, m) {
  m.impl("l2_normalize", l2_normalize_plain);
}
TORCH_LIBRARY_IMPL(tautline, Autograd, m) { m.impl("l2_normalize", l2_normalize); }

}  // namespace tautline::ops
