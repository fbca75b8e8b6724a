#include "tautline/ops/embedding_checks.h"

#include "tautline/base/error.h"
#include "tautline/kernels/embedding_lookup.h"
#ifdef TAUTLINE_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace tautline::ops {

kernels::Element element_of(at::ScalarType type, std::string_view what) {
  switch (type) {
    case at::kFloat:
      return kernels::Element::kFloat32;
    case at::kBFloat16:
      return kernels::Element::kBFloat16;
    case at::kHalf:
      return kernels::Element::kFloat16;
    default:
      break;
  }
  throw user_error(what, " is ", c10::toString(type),
                   "; float32, bfloat16 or float16 are possible");
}

void check_matrix(const at::Tensor& tensor, std::string_view what) {
  if (tensor.dim() != 2 || !tensor.is_contiguous())
    throw user_error(what, " has ", tensor.dim(), " dimensions",
                     tensor.is_contiguous() ? "" : " and is not contiguous",
                     "; a contiguous matrix is needed");
  element_of(tensor.scalar_type(), what);
}

at::Tensor int64_vector(const at::Tensor& tensor, const at::Tensor& beside, std::string_view what) {
  if (tensor.dim() != 1 || tensor.scalar_type() != at::kLong)
    throw user_error(what, " is a ", tensor.dim(), "-dimensional tensor of ",
                     c10::toString(tensor.scalar_type()), "; a vector of int64 is needed");
  if (tensor.device() != beside.device())
    throw user_error(what, " is on ", tensor.device().str(), ", the rest on ",
                     beside.device().str());
  return tensor.contiguous();
}

void check_state(const at::Tensor& tensor, int64_t size, const at::Tensor& beside,
                 std::string_view what) {
  if (tensor.scalar_type() != at::kFloat || tensor.numel() != size || !tensor.is_contiguous() ||
      tensor.device() != beside.device())
    throw user_error(what, " holds ", tensor.numel(), " elements of ",
                     c10::toString(tensor.scalar_type()), " on ", tensor.device().str(), "; ", size,
                     " contiguous elements of float32 on ", beside.device().str(), " are needed");
}

void check_rows(const at::Tensor& rows, int64_t table_rows) {
  if (!rows.is_cpu()) return;
  const auto* ids = rows.const_data_ptr<int64_t>();
  const int64_t bad = kernels::find_bad_row(ids, rows.numel(), table_rows);
  if (bad >= 0)
    throw user_error("row ", ids[bad], " (id ", bad, " of ", rows.numel(),
                     ") is outside the table of ", table_rows, " rows");
}

void check_offsets(const at::Tensor& offsets, int64_t count) {
  if (offsets.numel() < 1) throw user_error("offsets are empty; one more than bags are needed");
  if (!offsets.is_cpu()) return;
  const auto* at = offsets.const_data_ptr<int64_t>();
  const int64_t bags = offsets.numel() - 1;
  bool good = at[0] == 0 && at[bags] == count;
  for (int64_t b = 0; b < bags; ++b) good = good && at[b] <= at[b + 1];
  if (!good)
    throw user_error("offsets run from ", at[0], " to ", at[bags],
                     "; they must rise from 0 to the number of ids, ", count);
}

void* stream_of(const at::Tensor& tensor) {
#ifdef TAUTLINE_CUDA
  if (tensor.is_cuda()) return at::cuda::getCurrentCUDAStream(tensor.get_device()).stream();
#else
  if (!tensor.is_cpu())
    throw user_error("a tensor is on ", tensor.device().str(),
                     ", but this build of tautline is for the CPU only");
#endif
  return nullptr;
}

}  // namespace tautline::ops
