#include "tautline/kernels/embedding_lookup.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "tautline/base/error.h"
#include "tautline/ops/embedding.h"
#include "tautline/ops/embedding_checks.h"

namespace tautline::ops {
namespace {

/// Rows a task takes at least: about 256 KB of reading.
int64_t grain(int64_t width) {
  return std::max<int64_t>(1, (int64_t{1} << 16) / std::max<int64_t>(width, 1));
}

/// Runs `cpu(begin, end)` over [0, count) on the threads of ATen, or `cuda()`.
template <class Cpu, class Cuda>
void run(const at::Tensor& on, int64_t count, int64_t width, Cpu&& cpu, Cuda&& cuda) {
  if (count == 0 || width == 0) return;
  if (on.is_cpu()) return at::parallel_for(0, count, grain(width), cpu);
  cuda();
}

kernels::Lookup lookup_params(const at::Tensor& table, const at::Tensor& rows, at::Tensor& out) {
  kernels::Lookup p;
  p.table = table.const_data_ptr();
  p.table_type = element_of(table.scalar_type(), "the table");
  p.table_rows = table.size(0);
  p.width = table.size(1);
  p.rows = rows.const_data_ptr<int64_t>();
  p.count = rows.numel();
  p.out = out.mutable_data_ptr();
  p.out_type = element_of(out.scalar_type(), "the output type");
  p.stream = stream_of(table);
  return p;
}

}  // namespace

at::Tensor lookup(const at::Tensor& table, const at::Tensor& rows, at::ScalarType out_type) {
  check_matrix(table, "the table");
  const at::Tensor ids = int64_vector(rows, table, "the tensor of rows");
  check_rows(ids, table.size(0));
  at::Tensor out = at::empty({ids.numel(), table.size(1)}, table.options().dtype(out_type));
  const kernels::Lookup p = lookup_params(table, ids, out);
  run(
      table, p.count, p.width, [&](int64_t a, int64_t b) { kernels::lookup_cpu(p, a, b); },
      [&] {
        if constexpr (kCudaBuild) kernels::lookup_cuda(p);
      });
  return out;
}

at::Tensor pooled_lookup(const at::Tensor& table, const at::Tensor& rows, const at::Tensor& offsets,
                         bool mean, at::ScalarType out_type) {
  check_matrix(table, "the table");
  const at::Tensor ids = int64_vector(rows, table, "the tensor of rows");
  const at::Tensor bags = int64_vector(offsets, table, "the tensor of offsets");
  check_offsets(bags, ids.numel());
  check_rows(ids, table.size(0));
  at::Tensor out = at::empty({bags.numel() - 1, table.size(1)}, table.options().dtype(out_type));
  kernels::PooledLookup p;
  p.lookup = lookup_params(table, ids, out);
  p.offsets = bags.const_data_ptr<int64_t>();
  p.bags = bags.numel() - 1;
  p.mean = mean;
  run(
      table, p.bags, p.lookup.width,
      [&](int64_t a, int64_t b) { kernels::pooled_lookup_cpu(p, a, b); },
      [&] {
        if constexpr (kCudaBuild) kernels::pooled_lookup_cuda(p);
      });
  return out;
}

at::Tensor pooled_gradients(const at::Tensor& gradients, const at::Tensor& offsets, int64_t count,
                            bool mean) {
  check_matrix(gradients, "the gradient");
  const at::Tensor bags = int64_vector(offsets, gradients, "the tensor of offsets");
  check_offsets(bags, count);
  if (bags.numel() - 1 != gradients.size(0))
    throw user_error("the gradient has ", gradients.size(0), " rows for ", bags.numel() - 1,
                     " bags; one row a bag is needed");
  at::Tensor out = at::empty({count, gradients.size(1)}, gradients.options());
  kernels::PooledGradients p;
  p.gradients = gradients.const_data_ptr();
  p.out = out.mutable_data_ptr();
  p.type = element_of(gradients.scalar_type(), "the gradient");
  p.offsets = bags.const_data_ptr<int64_t>();
  p.bags = gradients.size(0);
  p.width = gradients.size(1);
  p.mean = mean;
  p.stream = stream_of(gradients);
  run(
      gradients, p.bags, p.width,
      [&](int64_t a, int64_t b) { kernels::pooled_gradients_cpu(p, a, b); },
      [&] {
        if constexpr (kCudaBuild) kernels::pooled_gradients_cuda(p);
      });
  return out;
}

void init_rows(at::Tensor& table, int64_t seed, int64_t table_index, int64_t first_row,
               int64_t stride, double std) {
  check_matrix(table, "the table");
  if (table_index < 0 || table_index >= 1 << 15)
    throw user_error("table index ", table_index, " is outside [0, 32768)");
  kernels::InitRows p;
  p.table = table.mutable_data_ptr();
  p.type = element_of(table.scalar_type(), "the table");
  p.table_rows = table.size(0);
  p.width = table.size(1);
  p.seed = static_cast<uint64_t>(seed);
  p.table_index = static_cast<uint32_t>(table_index);
  p.first_row = first_row;
  p.stride = stride;
  p.std = static_cast<float>(std);
  p.stream = stream_of(table);
  run(
      table, p.table_rows, p.width, [&](int64_t a, int64_t b) { kernels::init_rows_cpu(p, a, b); },
      [&] {
        if constexpr (kCudaBuild) kernels::init_rows_cuda(p);
      });
}

}  // namespace tautline::ops
