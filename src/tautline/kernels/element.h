// Element types of the kernels' pointers, and their sizes. No torch: ops/ maps at::ScalarType to
// it.
#pragma once

#include <cstdint>

namespace tautline::kernels {

/// What a `void*` of a params struct points to. CPU kernels take kFloat32 only (ops/ converts);
/// CUDA kernels take all three and compute in float.
enum class Element : int32_t { kFloat32, kBfloat16, kFloat16 };

constexpr int64_t element_bytes(Element element) { return element == Element::kFloat32 ? 4 : 2; }

}  // namespace tautline::kernels
