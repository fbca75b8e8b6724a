#include "tautline/dense/linear.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

namespace tautline::dense {
namespace {

constexpr int64_t kTokens = 37, kIn = 11, kOut = 5;

std::vector<ParameterSpec> two_layers() {
  return {{"a.weight", {kOut, kIn}, {Initial::Kind::kNormal, 0.5}, true},
          {"a.bias", {kOut}, {Initial::Kind::kNormal, 0.5}, false},
          {"b.weight", {kOut, kIn}, {Initial::Kind::kNormal, 0.5}, true}};
}

at::Tensor numbers(std::vector<int64_t> sizes, double phase) {
  int64_t n = 1;
  for (const int64_t size : sizes) n *= size;
  return at::sin(at::arange(n, at::kDouble) * 1.7 + phase).view(sizes).to(at::kBFloat16);
}

struct Linear : testing::Test {
  Parameters parameters{two_layers(), 1, at::kCPU};
  const Parameter& a = parameters.find("a.weight");
  const Parameter& b = parameters.find("b.weight");
  const at::Tensor bias = parameters["a.bias"];
  at::Tensor x = numbers({kTokens, kIn}, 0).requires_grad_();

  static at::Tensor product(const at::Tensor& d_y, const at::Tensor& x) {
    return d_y.t().mm(x.detach()).to(at::kFloat);
  }
};

// What autograd makes of the same casts, but for the gradient's own way.
TEST_F(Linear, IsAutogradsLinearOfRoundedWeights) {
  const at::Tensor d_y = numbers({kTokens, kOut}, 1);
  at::Tensor x2 = x.detach().clone().requires_grad_();
  at::Tensor w = a.value.detach().clone().requires_grad_(), v = bias.detach().clone();
  v.requires_grad_();
  const at::Tensor want = at::linear(x2, w.to(at::kBFloat16), v.to(at::kBFloat16));
  want.backward(d_y);
  const at::Tensor got = linear_bf16(x, a, bias);
  got.backward(d_y);
  EXPECT_TRUE(got.equal(want));
  EXPECT_TRUE(x.grad().equal(x2.grad()));
  EXPECT_TRUE(a.gradient.equal(w.grad()));
  // Autograd rounds the bias's gradient to bf16, this one does not.
  EXPECT_TRUE(bias.grad().allclose(v.grad(), 0x1p-8, 0x1p-8));
  EXPECT_TRUE(bias.grad().equal(d_y.sum({0}, false, at::kFloat)));
}

TEST_F(Linear, ProductsOverwriteTheLastStepsGradientAndAddWithinAStep) {
  const at::Tensor one = numbers({kTokens, kOut}, 1), two = numbers({kTokens, kOut}, 2);
  for (int step = 0; step < 3; ++step) {
    parameters.begin_backward();
    const bool twice = step == 1;
    if (twice)
      torch::autograd::backward({linear_bf16(x, a, bias), linear_bf16(x, a, {})}, {one, two});
    else
      linear_bf16(x, a, bias).backward(two);
    parameters.end_backward();
    at::Tensor want = product(two, x);
    if (twice) want = want.add(product(one, x));
    EXPECT_TRUE(a.gradient.equal(want)) << step;
    const at::Tensor d_bias = twice ? one : two;
    EXPECT_TRUE(bias.grad().equal(d_bias.sum({0}, false, at::kFloat))) << step;
  }
}

TEST_F(Linear, AWeightThatABackwardDoesNotReachHasNoGradient) {
  const at::Tensor d_y = numbers({kTokens, kOut}, 1);
  parameters.begin_backward();
  torch::autograd::backward({linear_bf16(x, a, {}), linear_bf16(x, b, {})}, {d_y, d_y});
  parameters.end_backward();
  EXPECT_GT(b.gradient.abs().sum().item<float>(), 0);
  parameters.begin_backward();
  linear_bf16(x, a, {}).backward(d_y);
  parameters.end_backward();
  EXPECT_EQ(b.gradient.abs().sum().item<float>(), 0);
  EXPECT_TRUE(a.gradient.equal(product(d_y, x)));
}

TEST_F(Linear, NoTokensMakeNoGradient) {
  const at::Tensor d_y = numbers({kTokens, kOut}, 1);
  linear_bf16(x, a, {}).backward(d_y);
  parameters.begin_backward();
  linear_bf16(x.narrow(0, 0, 0), a, {}).backward(d_y.narrow(0, 0, 0));
  parameters.end_backward();
  EXPECT_EQ(a.gradient.abs().sum().item<float>(), 0);
}

// An output that nothing depends on: its node runs with no gradient.
TEST_F(Linear, WithoutAGradientOfTheOutputThereIsNone) {
  const at::Tensor d_y = numbers({kTokens, kOut}, 1);
  linear_bf16(x, a, {}).backward(d_y);
  parameters.begin_backward();
  const at::Tensor y = linear_bf16(x, a, {});
  EXPECT_FALSE((*y.grad_fn())(torch::autograd::variable_list(1))[1].defined());
  EXPECT_FALSE(a.stale);
  EXPECT_EQ(a.gradient.abs().sum().item<float>(), 0);
}

TEST_F(Linear, WithoutGradModeThereIsNoGraph) {
  const at::NoGradGuard without;
  EXPECT_FALSE(linear_bf16(x, a, bias).requires_grad());
}

}  // namespace
}  // namespace tautline::dense
