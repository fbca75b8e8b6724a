#include "tautline/ops/attention_dispatch.h"

#include <gtest/gtest.h>

namespace tautline::ops {
namespace {

using kernels::AttentionProblem;

AttentionProblem plain() {
  static const int64_t offsets[] = {0, 10};
  AttentionProblem p;
  p.q_offsets = p.k_offsets = offsets;
  p.sequences = 1;
  p.heads = p.kv_heads = 2;
  p.head_dim = p.value_dim = 64;
  p.rows = p.k_tokens = p.max_q = p.max_k = 10;
  p.element = kernels::Element::kBFloat16;
  return p;
}

TEST(AttentionDispatch, LibtorchsKernelTakesPlainSoftmaxOffHopper) {
  for (const int64_t right : {-1, 0}) {
    AttentionProblem p = plain();
    p.window.right = right;
    EXPECT_EQ(forward_choice(p, true, 0.1, 80).kernel, AttentionKernel::kFlash2);
    EXPECT_EQ(backward_choice(p, true, 0.1, 80).kernel, AttentionKernel::kFlash2);
    EXPECT_EQ(forward_choice(p, false, 0, 80).kernel, AttentionKernel::kPortable);
  }
}

TEST(AttentionDispatch, WhatItDoesNotKnowGoesToThePortableOne) {
  const float table[] = {0};
  const auto expect_portable = [](const AttentionProblem& p, const char* why) {
    for (const auto& choice : {forward_choice(p, true, 0.1, 80), backward_choice(p, true, 0.1, 80)})
      EXPECT_EQ(choice.kernel, AttentionKernel::kPortable) << why;
    EXPECT_EQ(describe(forward_choice(p, true, 0.1, 80)),
              std::string("portable (not sm90: not a Hopper card; not flash2: ") + why + ")");
  };
  AttentionProblem p = plain();
  p.window.left = 3;
  expect_portable(p, "a window");
  p = plain();
  p.kv_heads = 1;
  expect_portable(p, "grouped heads");
  p = plain();
  p.q_offsets = nullptr;
  expect_portable(p, "queries stand in for every sequence");
  p = plain();
  p.value_dim = 32;
  expect_portable(p, "values of another width than keys");
  p = plain();
  p.head_dim = p.value_dim = 33;
  expect_portable(p, "a head dimension that 8 does not divide");
  p = plain();
  p.bias.position = table;
  expect_portable(p, "a bias");
  p = plain();
  p.k_tokens = 0;
  expect_portable(p, "nothing to do");
}

}  // namespace
}  // namespace tautline::ops
