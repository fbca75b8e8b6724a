// What users of the embedding operators rely on: results, checked errors, empties, the same bits
// for any number of threads, and shapes on meta tensors. The arithmetic itself: tests/kernels.
#include "tautline/ops/embedding.h"

#include <gmock/gmock.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tautline/base/error.h"

namespace tautline::ops {
namespace {

using ::testing::HasSubstr;

at::Tensor ids(std::initializer_list<int64_t> values) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::kLong);
}

template <class Function>
std::string message_of(Function&& function) {
  try {
    function();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no UserError";
}

at::Tensor counting_table(int64_t rows, int64_t width) {
  return at::arange(rows * width, at::kFloat).view({rows, width});
}

TEST(EmbeddingOps, LookupReadsRowsInAnyOrderAndZerosForNone) {
  const at::Tensor table = counting_table(6, 3);
  const at::Tensor out = lookup(table, ids({5, -1, 0, 5}), at::kFloat);
  EXPECT_TRUE(out[0].equal(table[5]));
  EXPECT_TRUE(out[1].equal(at::zeros({3})));
  EXPECT_TRUE(out[2].equal(table[0]));
  EXPECT_TRUE(out[3].equal(table[5]));
  EXPECT_EQ(lookup(table, ids({1}), at::kBFloat16).scalar_type(), at::kBFloat16);
  EXPECT_EQ(lookup(table, ids({}), at::kFloat).sizes(), (std::vector<int64_t>{0, 3}));
}

TEST(EmbeddingOps, AnIdBeyondTheTableIsNamed) {
  const at::Tensor table = counting_table(6, 3);
  EXPECT_THAT(message_of([&] {
                lookup(table, ids({0, 6}), at::kFloat);
              }),
              HasSubstr("row 6 (id 1 of 2) is outside the table of 6 rows"));
  EXPECT_THAT(message_of([&] { coalesce(ids({-2}), at::zeros({1, 3}), 6); }), HasSubstr("row -2"));
  at::Tensor copy = table.clone(), state = at::zeros({6});
  EXPECT_THAT(message_of([&] {
                update_rowwise_adagrad(copy, state, ids({2, 99}), at::ones({2, 3}), 1, 1e-8, 0);
              }),
              HasSubstr("row 99"));
  EXPECT_TRUE(copy.equal(table));  // refused before anything changed
}

TEST(EmbeddingOps, WrongTensorsAreRefusedInOneSentence) {
  at::Tensor table = counting_table(6, 3), state = at::zeros({5});
  EXPECT_THAT(message_of([&] { lookup(table, at::zeros({2}), at::kFloat); }), HasSubstr("int64"));
  EXPECT_THAT(message_of([&] { lookup(table.t(), ids({0}), at::kFloat); }),
              HasSubstr("contiguous"));
  EXPECT_THAT(message_of([&] { lookup(table, ids({0}), at::kDouble); }), HasSubstr("Double"));
  EXPECT_THAT(message_of([&] {
                coalesce(ids({0}), at::zeros({2, 3}), 6);
              }),
              HasSubstr("2 rows for 1 ids"));
  EXPECT_THAT(message_of([&] {
                apply_rowwise_adagrad(table, state, ids({0}), at::zeros({1, 3}), 1, 1, 0);
              }),
              HasSubstr("holds 5 elements"));
  EXPECT_THAT(message_of([&] {
                apply_sgd(table, ids({0}), at::zeros({1, 4}), 1, 0);
              }),
              HasSubstr("4 columns, the table 3"));
  EXPECT_THAT(message_of([&] {
                pooled_lookup(table, ids({0, 1}), ids({0, 1}), false, at::kFloat);
              }),
              HasSubstr("number of ids, 2"));
}

TEST(EmbeddingOps, CoalesceSumsRepeatedRows) {
  const at::Tensor gradients = counting_table(5, 2);
  const auto [rows, sums] = coalesce(ids({4, 1, 4, -1, 1}), gradients, 6);
  EXPECT_TRUE(rows.equal(ids({1, 4})));
  EXPECT_TRUE(sums[0].equal(gradients[1] + gradients[4]));
  EXPECT_TRUE(sums[1].equal(gradients[0] + gradients[2]));
  const auto [no_rows, no_sums] = coalesce(ids({}), at::zeros({0, 2}, at::kBFloat16), 6);
  EXPECT_EQ(no_rows.numel(), 0);
  EXPECT_EQ(no_sums.sizes(), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(no_sums.scalar_type(), at::kFloat);
}

// A step by hand: g = (1 + 3, 2 + 4) twice in one row; mean square 26; state 26.
TEST(EmbeddingOps, RowwiseAdagradByHand) {
  at::Tensor table = at::ones({3, 2}), state = at::zeros({3});
  const at::Tensor gradients = at::tensor({1.f, 2.f, 3.f, 4.f}).view({2, 2});
  update_rowwise_adagrad(table, state, ids({1, 1}), gradients, 0.1, 0.0, 0.0);
  EXPECT_FLOAT_EQ(state[1].item<float>(), 26.f);
  EXPECT_FLOAT_EQ(table[1][0].item<float>(), 1 - 0.1f * 4 / std::sqrt(26.f));
  EXPECT_FLOAT_EQ(table[1][1].item<float>(), 1 - 0.1f * 6 / std::sqrt(26.f));
  EXPECT_TRUE(table[0].equal(at::ones({2})));
  EXPECT_EQ(state[0].item<float>(), 0.f);
}

// First Adam step with bias correction: m / (1 - b1) = g, v / (1 - b2) = g^2, so w moves by lr
// sign(g).
TEST(EmbeddingOps, FirstAdamStepMovesByTheLearningRate) {
  at::Tensor table = at::zeros({3, 2}), m = at::zeros({3, 2}), v = at::zeros({3, 2});
  apply_adam(table, m, v, ids({2}), at::tensor({5.f, -7.f}).view({1, 2}), 1, 0.01, 0.9, 0.999, 0,
             0);
  EXPECT_NEAR(table[2][0].item<float>(), -0.01f, 1e-7);
  EXPECT_NEAR(table[2][1].item<float>(), 0.01f, 1e-7);
  EXPECT_TRUE(table[0].equal(at::zeros({2})) && m[0].equal(at::zeros({2})));
}

TEST(EmbeddingOps, ThreadsDoNotChangeABit) {
  const int64_t n = 20000, rows = 3000, width = 32;
  const at::Tensor id = at::randint(-1, rows, {n}, at::kLong), g = at::randn({n, width});
  const int threads = at::get_num_threads();
  at::Tensor results[2], states[2], looked_up[2];
  for (const int run : {0, 1}) {
    at::set_num_threads(run == 0 ? 1 : 5);
    results[run] = at::empty({rows, width});
    init_rows(results[run], 3, 0, 0, 1, 0.02);
    states[run] = at::zeros({rows});
    update_rowwise_adagrad(results[run], states[run], id, g, 0.1, 1e-8, 0.01);
    looked_up[run] = lookup(results[run], id, at::kFloat);
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(results[0].equal(results[1]));
  EXPECT_TRUE(states[0].equal(states[1]));
  EXPECT_TRUE(looked_up[0].equal(looked_up[1]));
}

TEST(EmbeddingOps, FusedEqualsCoalesceThenApply) {
  const at::Tensor id = at::randint(0, 50, {5000}, at::kLong), g = at::randn({5000, 24});
  const auto [rows, sums] = coalesce(id, g, 50);
  struct Table {
    at::Tensor weight = counting_table(50, 24), sum = at::zeros({50});
    at::Tensor moment1 = at::zeros({50, 24}), moment2 = at::zeros({50, 24});
  } fused, apart;
  const auto expect_equal = [&] {
    EXPECT_TRUE(fused.weight.equal(apart.weight));
    EXPECT_TRUE(fused.sum.equal(apart.sum));
    EXPECT_TRUE(fused.moment1.equal(apart.moment1) && fused.moment2.equal(apart.moment2));
  };
  update_sgd(fused.weight, id, g, 0.1, 0.01);
  apply_sgd(apart.weight, rows, sums, 0.1, 0.01);
  expect_equal();
  update_rowwise_adagrad(fused.weight, fused.sum, id, g, 0.1, 1e-8, 0);
  apply_rowwise_adagrad(apart.weight, apart.sum, rows, sums, 0.1, 1e-8, 0);
  expect_equal();
  update_adam(fused.weight, fused.moment1, fused.moment2, id, g, 3, 0.1, 0.9, 0.99, 1e-8, 0);
  apply_adam(apart.weight, apart.moment1, apart.moment2, rows, sums, 3, 0.1, 0.9, 0.99, 1e-8, 0);
  expect_equal();
  EXPECT_GT(apart.moment2.abs().sum().item<float>(), 0);
}

TEST(EmbeddingOps, PooledMeanAndItsGradient) {
  const at::Tensor table = counting_table(4, 2);
  const at::Tensor out = pooled_lookup(table, ids({0, 2, 3}), ids({0, 2, 2, 3}), true, at::kFloat);
  EXPECT_TRUE(out[0].equal((table[0] + table[2]) / 2));
  EXPECT_TRUE(out[1].equal(at::zeros({2})));
  EXPECT_TRUE(out[2].equal(table[3]));
  const at::Tensor g = pooled_gradients(counting_table(3, 2) + 2, ids({0, 2, 2, 3}), 3, true);
  EXPECT_TRUE(g[0].equal(at::tensor({1.f, 1.5f})) && g[1].equal(g[0]));
  EXPECT_TRUE(g[2].equal(at::tensor({6.f, 7.f})));
}

TEST(EmbeddingOps, MetaTensorsGetShapes) {
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("tautline::lookup", "")
                      .typed<at::Tensor(const at::Tensor&, const at::Tensor&, at::ScalarType)>();
  const auto meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor out =
      op.call(at::empty({9, 4}, meta), at::empty({3}, meta.dtype(at::kLong)), at::kHalf);
  EXPECT_TRUE(out.is_meta());
  EXPECT_EQ(out.sizes(), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(out.scalar_type(), at::kHalf);
  EXPECT_TRUE(op.call(counting_table(4, 2), ids({1}), at::kFloat)
                  .equal(lookup(counting_table(4, 2), ids({1}), at::kFloat)));
}

}  // namespace
}  // namespace tautline::ops
