// What the operators of the dense block share: calls through the dispatcher, FP32 views for the CPU
// kernels, threads.
//
// Every operator has three parts: NAME, whose autograd kernel is the public C++ function;
// NAME_forward and NAME_backward, which do the work on CPU and CUDA and have meta kernels, so that
// torch.compile traces through the autograd kernel into them.
#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>

#include "tautline/kernels/element.h"
#include "tautline/ops/embedding_checks.h"

namespace tautline::ops {

/// The operator's typed handle; keep it in a function-local static.
template <class Signature>
auto find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

inline at::TensorOptions float_like(const at::Tensor& x) { return x.options().dtype(at::kFloat); }

/// What a kernel reads: contiguous, and FP32 on the CPU, whose kernels know nothing else.
inline at::Tensor readable(const at::Tensor& x) {
  return (x.is_cpu() ? x.to(at::kFloat) : x).contiguous();
}
inline at::Tensor float_vector(const at::Tensor& x) { return x.to(at::kFloat).contiguous(); }

inline kernels::Element element_of(const at::Tensor& x) {
  return element_of(x.scalar_type(), "the input");
}

/// `body(begin, end)` over [0, n) on ATen's threads; `cost` is the number of elements of one item.
template <class Body>
void parallel(int64_t n, int64_t cost, Body&& body) {
  constexpr int64_t kLeastElements = 1 << 14;
  at::parallel_for(0, n, std::max<int64_t>(1, kLeastElements / std::max<int64_t>(1, cost)), body);
}

/// An undefined tensor as none, for operators with optional arguments.
inline std::optional<at::Tensor> if_defined(const at::Tensor& x) {
  return x.defined() ? std::optional<at::Tensor>(x) : std::nullopt;
}
inline const float* float_data(const std::optional<at::Tensor>& x) {
  return x ? x->const_data_ptr<float>() : nullptr;
}

}  // namespace tautline::ops
