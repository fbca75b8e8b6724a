// y = a x for a number `a` on the device, both of x's type; the product rounded once.
#pragma once

#include <cstdint>

#include "tautline/kernels/element.h"

namespace tautline::kernels {

struct Scale {
  const void* x = nullptr;  // [count]
  const void* a = nullptr;  // [1]
  void* y = nullptr;        // [count]
  int64_t count = 0;
  Element element = Element::kFloat32;
  void* stream = nullptr;
};

void scale_cuda(const Scale& p);

}  // namespace tautline::kernels
