// The operators of the dense block as the C++ models call them: what Python's tests
// (tests/python/test_ops.py) cannot see. Values and gradients are compared there.
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include "tautline/base/error.h"
#include "tautline/ops/ops.h"

namespace tautline::ops {
namespace {

Tensor leaf(at::IntArrayRef sizes) { return at::randn(sizes).set_requires_grad(true); }

std::vector<Tensor> gradients(const Tensor& y, const std::vector<Tensor>& inputs) {
  return torch::autograd::grad({y}, inputs, {at::ones_like(y)}, /*retain_graph=*/true);
}

class DenseBlock : public ::testing::Test {
 protected:
  void SetUp() override { at::manual_seed(5); }
};

TEST_F(DenseBlock, OneOutputOfAFusedNormMayGoUnused) {
  const Tensor x = leaf({5, 32}), residual = leaf({5, 32}), w = leaf({32});
  const auto [sum, out] = add_rms_norm(x, residual, w, 1e-6);
  const auto of_sum = gradients(sum, {x, residual});
  EXPECT_TRUE(at::equal(of_sum[0], at::ones({5, 32})));
  const auto of_out = gradients(out, {x, residual, w});
  const auto alone =
      gradients(rms_norm((x + residual).detach().set_requires_grad(true), w, 1e-6), {w});
  EXPECT_TRUE(at::equal(of_out[0], of_out[1]));
  EXPECT_TRUE(at::equal(of_out[2], alone[0]));
}

TEST_F(DenseBlock, WithoutGradModeNothingIsRecordedAndTheLossIsTheSame) {
  const Tensor h = leaf({30, 48}), items = leaf({77, 48}), target = at::arange(30);
  const Tensor with = full_softmax(h, items, target, 0.1, true);
  const at::NoGradGuard guard;
  const Tensor without = full_softmax(h, items, target, 0.1, true);
  EXPECT_TRUE(with.requires_grad());
  EXPECT_FALSE(without.requires_grad());
  EXPECT_TRUE(at::equal(with, without));
}

TEST_F(DenseBlock, NothingIsANormalNumberOfRows) {
  const Tensor none = leaf({0, 16}), items = leaf({9, 16}), w = leaf({16}),
               ids = at::zeros({0}, at::kLong);
  const Tensor offsets = at::zeros({1}, at::kLong), heads = none.view({0, 2, 8});
  const Tensor sum =
      rms_norm(none, w, 1e-6).sum() + ops::gelu(none).sum() + swiglu(none).sum() +
      dropout(none, 0.5, 1, 2, 3, ids, ids).sum() +
      jagged_attention(heads, heads, heads, offsets, offsets, 0, 0, true, 1.0).sum() +
      full_softmax(none, items, ids, 0.1, true) +
      sampled_softmax(none, none, items, ids, at::arange(9), std::nullopt, std::nullopt, 1.0, false,
                      true) +
      binary_loss(none.sum(1), at::zeros({0}));
  EXPECT_EQ(sum.item<float>(), 0.0f);
  for (const Tensor& d : gradients(sum, {none, items, w})) {
    EXPECT_TRUE(at::equal(d, at::zeros_like(d)));
  }
}

TEST_F(DenseBlock, AnEmptyShardOfTheClassesCountsForNothing) {
  const Tensor h = at::randn({4, 16}), none = at::empty({0, 16}),
               target = at::full({4}, -1, at::kLong);
  const auto [max, sum, logit] = softmax_statistics(h, none, target, 1.0);
  EXPECT_TRUE(at::equal(max, at::full({4}, -INFINITY)));
  EXPECT_TRUE(at::equal(sum, at::zeros({4})));
  const Repeats repeats{at::ones({1}), at::full({2}, -1, at::kLong), target.add(1), target.add(3)};
  const auto [d_h, d_items, d_bias] =
      softmax_gradient(h, none, at::zeros({4}), target, 1.0, 1.0, repeats);
  EXPECT_TRUE(at::equal(d_h, at::zeros({4, 16})));
  EXPECT_EQ(d_items.sizes(), at::IntArrayRef({0, 16}));
  EXPECT_TRUE(at::equal(d_bias, at::zeros({1})));
}

TEST_F(DenseBlock, RowsWithInfiniteLseHaveNoGradient) {
  const Tensor h = at::randn({3, 16}), items = at::randn({40, 16});
  const Tensor target = at::full({3}, -1, at::kLong), lse = at::full({3}, INFINITY);
  const auto [d_h, d_items, d_bias] = softmax_gradient(h, items, lse, target, 0.5, 1.0);
  EXPECT_TRUE(at::equal(d_h, at::zeros_like(h)));
  EXPECT_TRUE(at::equal(d_items, at::zeros_like(items)));
  EXPECT_EQ(d_bias.numel(), 0);
}

TEST_F(DenseBlock, AllNegativesHitAndTheLossIsZero) {
  const Tensor h = leaf({2, 16}), positive = leaf({2, 16}), negative = leaf({3, 16});
  const Tensor loss =
      sampled_softmax(h, positive, negative, at::full({2}, 7, at::kLong),
                      at::full({3}, 7, at::kLong), std::nullopt, std::nullopt, 0.1, true, true);
  EXPECT_EQ(loss.item<float>(), 0.0f);
  for (const Tensor& d : gradients(loss, {h, positive, negative})) {
    EXPECT_TRUE(at::equal(d, at::zeros_like(d)));
  }
}

TEST_F(DenseBlock, AStepHasTheSameBitsOnAnyNumberOfThreads) {
  const Tensor h = leaf({500, 64}), items = leaf({3000, 64}), w = leaf({64}),
               target = at::arange(500);
  const Tensor qkv = leaf({500, 3, 2, 32});
  const Tensor offsets = at::tensor({0, 1, 200, 200, 213, 500}, at::kLong);
  const auto step = [&] {
    const auto p = qkv.unbind(1);
    const Tensor a = jagged_attention(p[0], p[1], p[2], offsets, offsets, 287, 287, true, 0.2);
    const Tensor x = rms_norm(ops::gelu(a.reshape({500, 64})) + h, w, 1e-6);
    const Tensor loss = full_softmax(x, items, target, 0.1, true);
    auto result = gradients(loss, {h, items, w, qkv});
    result.push_back(loss.detach());
    return result;
  };
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto want = step();
  for (const int threads : {2, 3, 4}) {
    at::set_num_threads(threads);
    const auto got = step();
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(at::equal(got[i], want[i])) << threads << " " << i;
  }
  at::set_num_threads(before);
}

TEST_F(DenseBlock, BadShapesAreTheUsersErrors) {
  const Tensor x = at::randn({3, 8}), ids = at::zeros({3}, at::kLong);
  EXPECT_THROW(rms_norm(x, at::ones({9}), 1e-6), UserError);
  EXPECT_THROW(swiglu(at::randn({3, 7})), UserError);
  EXPECT_THROW(rope(at::randn({3, 3, 2, 5}), ids, 1e4), UserError);
  EXPECT_THROW(dropout(x, 1.0, 0, 0, 0, ids, ids), UserError);
  EXPECT_THROW(full_softmax(x, at::randn({2, 8}), at::full({3}, 2, at::kLong), 1.0, false),
               UserError);
  EXPECT_THROW(full_softmax(x, at::randn({2, 8}), ids, 0.0, false), UserError);
  const Repeats good{at::ones({1}), at::zeros({4}, at::kLong), ids, ids.add(4)};
  const auto loss = [&](const Repeats& r) { full_softmax(x, at::randn({2, 8}), ids, 1, false, r); };
  EXPECT_NO_THROW(loss(good));
  EXPECT_THROW(loss({good.bias, good.column, {}, {}}), UserError);
  EXPECT_THROW(loss({good.bias, good.column.add(2), good.first, good.last}), UserError);
  EXPECT_THROW(loss({good.bias, good.column, good.first, good.last.add(1)}), UserError);
  EXPECT_THROW(loss({at::ones({2}), good.column, good.first, good.last}), UserError);
  EXPECT_THROW(binary_loss(at::randn({3}), at::randn({4})), UserError);
}

}  // namespace
}  // namespace tautline::ops
