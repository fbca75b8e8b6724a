// What the embedding operators check of their tensors, and how they turn them into kernels' params.
#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "tautline/kernels/element.h"

namespace tautline::ops {

/// A CPU build holds no CUDA kernels: `if constexpr (kCudaBuild)` keeps calls of them out of it.
#ifdef TAUTLINE_CUDA
inline constexpr bool kCudaBuild = true;
#else
inline constexpr bool kCudaBuild = false;
#endif

/// The element type of a tensor; UserError naming `what` unless float32, bfloat16 or float16.
kernels::Element element_of(at::ScalarType type, std::string_view what);

/// A contiguous [R, E] tensor of a type that kernels know.
void check_matrix(const at::Tensor& tensor, std::string_view what);
/// An int64 vector on the device of `beside`; returned contiguous.
at::Tensor int64_vector(const at::Tensor& tensor, const at::Tensor& beside, std::string_view what);
/// float32, contiguous, of `size` elements, on the device of `beside`.
void check_state(const at::Tensor& tensor, int64_t size, const at::Tensor& beside,
                 std::string_view what);
/// CPU only (CUDA kernels check themselves): every id in [-1, table_rows).
void check_rows(const at::Tensor& rows, int64_t table_rows);
/// CPU only: offsets [B + 1] rise from 0 to `count`.
void check_offsets(const at::Tensor& offsets, int64_t count);

/// The current stream of the tensor's device as kernels take it; null on the CPU.
void* stream_of(const at::Tensor& tensor);

}  // namespace tautline::ops
