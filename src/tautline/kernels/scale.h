// y = a x for a number `a` on the device, in FP32; the product rounded once.
#pragma once

#include <cstdint>

#include "tautline/kernels/element.h"

namespace tautline::kernels {

struct Scale {
  const void* x = nullptr;   // [count]
  const float* a = nullptr;  // [1]
  void* y = nullptr;         // [count]
  int64_t count = 0;
  Element element = Element::kFloat32;
  void* stream = nullptr;
};

void scale_cuda(const Scale& p);

}  // namespace tautline::kernels
