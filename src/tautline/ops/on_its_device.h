// The device of an operator's tensors as the current one, as PyTorch's own operators have it: kernels
// are launched, streams asked for and memory allocated where the tensors are, whatever device the
// caller's thread has chosen.
#pragma once

#include <optional>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

namespace tautline::ops {

/// Of the first tensor that there is.
inline std::optional<c10::Device> first_device() { return std::nullopt; }
template <class First, class... Rest>
std::optional<c10::Device> first_device(const First& x, const Rest&... rest) {
  if constexpr (std::is_same_v<First, at::Tensor>) {
    if (x.defined()) return x.device();
  } else if constexpr (std::is_same_v<First, std::optional<at::Tensor>>) {
    if (x && x->defined()) return x->device();
  }
  return first_device(rest...);
}

template <auto kFunction>
struct OnItsDevice;
template <class Result, class... Arguments, Result (*kFunction)(Arguments...)>
struct OnItsDevice<kFunction> {
  static Result call(Arguments... arguments) {
    const c10::OptionalDeviceGuard guard(first_device(arguments...));
    return kFunction(std::forward<Arguments>(arguments)...);
  }
};

/// What to register in an operator function's place.
template <auto kFunction>
inline constexpr auto on_its_device = &OnItsDevice<kFunction>::call;

}  // namespace tautline::ops
