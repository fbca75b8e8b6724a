#include "tautline/dense/adamw.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tautline/dense/parameters.h"

namespace tautline::dense {
namespace {

std::vector<ParameterSpec> two_parameters() {
  return {{"matrix", {3, 5}, {Initial::Kind::kNormal, 0.5}, true},
          {"vector", {7}, {Initial::Kind::kUniform, 0.25}, false}};
}

TEST(Parameters, InitialValuesDependOnNameAndSeedAlone) {
  const Parameters both(two_parameters(), 3, at::kCPU);
  const Parameters alone({two_parameters()[1]}, 3, at::kCPU);
  const Parameters other({two_parameters()[1]}, 4, at::kCPU);
  EXPECT_TRUE(both["vector"].equal(alone["vector"]));
  EXPECT_FALSE(both["vector"].equal(other["vector"]));
  EXPECT_LE(alone["vector"].detach().abs().max().item<float>(), 0.25f);
}

TEST(Parameters, AutogradAddsIntoTheFlatGradient) {
  Parameters parameters(two_parameters(), 3, at::kCPU);
  (parameters["matrix"].sum() * 2 + parameters["vector"].sum() * 3).backward();
  EXPECT_EQ(parameters.gradients().narrow(0, 0, 15).eq(2).sum().item<int64_t>(), 15);
  EXPECT_EQ(parameters.gradients().narrow(0, 15, 7).eq(3).sum().item<int64_t>(), 7);
  parameters.clear_gradients();
  EXPECT_EQ(parameters["matrix"].grad().abs().sum().item<float>(), 0);
}

/// Algorithm 2 of Loshchilov and Hutter in plain double loops, with clipping by the global norm.
struct PlainAdamW {
  AdamWOptions o;
  std::vector<double> value, first, second;

  void step(const std::vector<double>& gradient, const std::vector<bool>& decay, int64_t t) {
    double norm = 0;
    for (const double g : gradient) norm += g * g;
    const double scale = o.clip > 0 ? std::min(1.0, o.clip / std::sqrt(norm)) : 1.0;
    const double lr = o.lr * learning_rate_factor(o, t - 1);
    for (size_t i = 0; i < value.size(); ++i) {
      const double g = gradient[i] * scale;
      if (decay[i]) value[i] *= 1 - lr * o.weight_decay;
      first[i] = o.beta1 * first[i] + (1 - o.beta1) * g;
      second[i] = o.beta2 * second[i] + (1 - o.beta2) * g * g;
      const double m = first[i] / (1 - std::pow(o.beta1, t));
      const double v = second[i] / (1 - std::pow(o.beta2, t));
      value[i] -= lr * m / (std::sqrt(v) + o.eps);
    }
  }
};

TEST(AdamW, EqualsThePlainAlgorithm) {
  AdamWOptions options;
  options.weight_decay = 0.1;
  options.clip = 1.0;
  options.warmup = 3;
  options.decay = "cosine";
  options.last_step = 20;
  options.lr = 0.05;
  Parameters parameters(two_parameters(), 3, at::kCPU);
  AdamW optimizer(parameters, options);
  PlainAdamW plain{options, {}, std::vector<double>(22), std::vector<double>(22)};
  std::vector<bool> decay(22);
  for (int i = 0; i < 22; ++i) {
    plain.value.push_back(parameters.values()[i].item<float>());
    decay[i] = i < 15;
  }
  for (int64_t step = 0; step < 20; ++step) {
    std::vector<double> gradient(22);
    for (int i = 0; i < 22; ++i) {
      gradient[i] = static_cast<float>(std::sin(1.0 + i * 7 + step * 3));
      parameters.gradients()[i].fill_(gradient[i]);
    }
    optimizer.step(step);
    plain.step(gradient, decay, step + 1);
  }
  // 20 updates of at most lr (1 + eps) each, every one rounded to FP32 a handful of times.
  const double tolerance = 20 * 8 * 0x1p-24 * 1.0;
  for (int i = 0; i < 22; ++i) {
    EXPECT_NEAR(parameters.values()[i].item<float>(), plain.value[i], tolerance) << "element " << i;
  }
}

TEST(AdamW, LearningRateWarmsUpAndDecaysToZero) {
  AdamWOptions options;
  options.warmup = 10;
  options.last_step = 110;
  EXPECT_DOUBLE_EQ(learning_rate_factor(options, 0), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_factor(options, 9), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_factor(options, 109), 1.0);
  options.decay = "linear";
  EXPECT_DOUBLE_EQ(learning_rate_factor(options, 60), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_factor(options, 110), 0.0);
  options.decay = "cosine";
  EXPECT_NEAR(learning_rate_factor(options, 60), 0.5, 1e-15);
}

}  // namespace
}  // namespace tautline::dense
