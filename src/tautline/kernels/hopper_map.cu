#include <algorithm>

#include "tautline/kernels/hopper_map.h"
#include "tautline/kernels/launch.cuh"

namespace tautline::kernels::hopper {
namespace {

/// The driver's function, through the runtime: linking libcuda fails where there is no driver.
auto encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                              cudaEnableDefault, &found),
             "cuTensorMapEncodeTiled");
  if (function == nullptr) throw RankFailure("CUDA: the driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

bool fits_map(const HeadsView& view, int64_t heads) {
  constexpr int64_t kLongestStride = int64_t{1} << 38;  // of 2^40 bytes, in elements, with room
  const auto whole = [](int64_t stride) {
    return stride > 0 && stride % 8 == 0 && stride < kLongestStride;
  };
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && whole(view.token_stride) &&
         (heads == 1 || whole(view.head_stride));
}

CUtensorMap tensor_map(const HeadsView& view, Element element, int64_t tokens, int64_t heads,
                       int64_t dim, int32_t rows) {
  static const auto encode = encoder();
  CUtensorMap map;
  const auto token = static_cast<cuuint64_t>(view.token_stride) * 2;
  // A stride that is never used must still be a positive multiple of 16.
  const auto head = heads > 1 ? static_cast<cuuint64_t>(view.head_stride) * 2 : 16;
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(dim), static_cast<cuuint64_t>(rows),
                               static_cast<cuuint64_t>(std::max<int64_t>(tokens, 1)) + 1,
                               static_cast<cuuint64_t>(heads)};
  const cuuint64_t strides[3] = {token, token, head};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(rows), 1, 1}, steps[4] = {1, 1, 1, 1};
  const CUresult result =
      encode(&map,
             element == Element::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                           : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
             4, static_cast<char*>(view.data) - rows * token, sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw RankFailure("CUDA: cuTensorMapEncodeTiled: error " + std::to_string(result));
  return map;
}

}  // namespace tautline::kernels::hopper
