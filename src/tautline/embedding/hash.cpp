#include "tautline/embedding/hash.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

namespace tautline::embedding {
namespace {

// x >> shift without the sign: int64 tensors only know the arithmetic shift.
at::Tensor shift_right(const at::Tensor& x, int64_t shift) {
  return x.bitwise_right_shift(shift).bitwise_and((int64_t{1} << (64 - shift)) - 1);
}

at::Tensor avalanche(at::Tensor h) {
  h = h.bitwise_xor(shift_right(h, 33)).mul(static_cast<int64_t>(0xC2B2AE3D27D4EB4Full));
  h = h.bitwise_xor(shift_right(h, 29)).mul(static_cast<int64_t>(0x165667B19E3779F9ull));
  return h.bitwise_xor(shift_right(h, 32));
}

}  // namespace

at::Tensor hash_rows(const at::Tensor& ids, int64_t ways, int64_t rows) {
  if (!ids.is_cpu()) return hash_rows_generic(ids, ways, rows);
  at::Tensor out = at::empty({ids.numel() * ways}, ids.options());
  const int64_t* in = ids.const_data_ptr<int64_t>();
  int64_t* to = out.mutable_data_ptr<int64_t>();
  at::parallel_for(0, ids.numel(), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t way = 0; way < ways; ++way)
        to[i * ways + way] = way * rows + hash_row(in[i], way, rows);
  });
  return out;
}

at::Tensor hash_rows_generic(const at::Tensor& ids, int64_t ways, int64_t rows) {
  std::vector<at::Tensor> of_way;
  for (int64_t way = 0; way < ways; ++way) {
    const uint64_t offset = (static_cast<uint64_t>(way) + 1) * 0x9E3779B97F4A7C15ull;
    const at::Tensor hashed = avalanche(ids.add(static_cast<int64_t>(offset)));
    of_way.push_back(hashed.bitwise_and(INT64_MAX).remainder(rows).add(way * rows));
  }
  return at::stack(of_way, 1).view({-1});
}

}  // namespace tautline::embedding
