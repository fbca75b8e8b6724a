#include "tautline/ops/on_its_device.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

namespace tautline::ops {
namespace {

TEST(OnItsDevice, FindsTheFirstTensorThatThereIs) {
  const at::Tensor none, meta = at::empty({2}, at::kMeta), cpu = at::empty({2});
  const std::optional<at::Tensor> absent, given = cpu;
  EXPECT_EQ(first_device(none, 3, absent, meta, cpu), c10::Device(at::kMeta));
  EXPECT_EQ(first_device(1.5, given, meta), c10::Device(at::kCPU));
  EXPECT_EQ(first_device(none, absent, int64_t{4}), std::nullopt);
}

int64_t count(const at::Tensor& x, std::optional<at::Tensor> y, int64_t more) {
  return x.numel() + (y ? y->numel() : 0) + more;
}
void fill(at::Tensor& x, double value) { x.fill_(value); }

TEST(OnItsDevice, CallsTheFunctionWithItsArguments) {
  at::Tensor x = at::empty({3});
  EXPECT_EQ(on_its_device<count>(x, at::empty({2}), 5), 10);
  EXPECT_EQ(on_its_device<count>(x, std::nullopt, 5), 8);
  on_its_device<fill>(x, 2);
  EXPECT_EQ(x.sum().item<float>(), 6);
}

}  // namespace
}  // namespace tautline::ops
