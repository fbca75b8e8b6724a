#include "tautline/dense/linear.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "tautline/base/error.h"

namespace tautline::dense {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

struct LinearBackward : torch::autograd::Node {
  const Parameter* weight = nullptr;
  SavedVariable x;
  at::Tensor weight16;

  std::string name() const override { return "tautline::LinearBackward"; }
  variable_list apply(variable_list&& gradients) override {
    const at::NoGradGuard no_grad;
    variable_list result(3);
    const at::Tensor& d_y = gradients[0];
    if (!d_y.defined()) {
      if (task_should_compute_output(1)) weight->add_nothing();
      return result;
    }
    TAUTLINE_INVARIANT(weight16.defined(), "a second backward through linear_bf16");
    if (task_should_compute_output(0)) result[0] = d_y.mm(weight16);
    if (task_should_compute_output(1)) weight->add_product(d_y, x.unpack());
    if (task_should_compute_output(2)) result[2] = d_y.sum({0}, /*keepdim=*/false, at::kFloat);
    return result;
  }
  void release_variables() override {
    x.reset_data();
    weight16.reset();
  }
};

}  // namespace

at::Tensor linear_bf16(const at::Tensor& x, const Parameter& weight, const at::Tensor& bias) {
  TAUTLINE_INVARIANT(x.dim() == 2 && x.scalar_type() == at::kBFloat16,
                     "linear_bf16 of " << x.sizes() << ' ' << x.scalar_type());
  at::Tensor weight16, y;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    weight16 = weight.value.to(at::kBFloat16);
    y = at::linear(x, weight16, bias.defined() ? bias.to(at::kBFloat16) : at::Tensor());
  }
  if (torch::autograd::compute_requires_grad(x, weight.value, bias)) {
    const std::shared_ptr<LinearBackward> node(new LinearBackward, torch::autograd::deleteNode);
    node->set_next_edges(torch::autograd::collect_next_edges(x, weight.value, bias));
    node->weight = &weight;
    weight.by_products = true;
    node->x = SavedVariable(x, /*is_output=*/false);
    node->weight16 = weight16;
    torch::autograd::set_history(y, node);
  }
  return y;
}

}  // namespace tautline::dense
