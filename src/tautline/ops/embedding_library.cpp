// torch.ops.tautline.*: the embedding operators for Python, with shapes for torch.compile.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "tautline/ops/embedding.h"
#include "tautline/ops/on_its_device.h"

namespace tautline::ops {
namespace {

at::Tensor lookup_meta(const at::Tensor& table, const at::Tensor& rows, at::ScalarType out_type) {
  return at::empty_symint({rows.sym_size(0), table.sym_size(1)}, table.options().dtype(out_type));
}

at::Tensor pooled_lookup_meta(const at::Tensor& table, const at::Tensor&, const at::Tensor& offsets,
                              bool, at::ScalarType out_type) {
  return at::empty_symint({offsets.sym_size(0) - 1, table.sym_size(1)},
                          table.options().dtype(out_type));
}

at::Tensor pooled_gradients_meta(const at::Tensor& gradients, const at::Tensor&, c10::SymInt count,
                                 bool) {
  return at::empty_symint({std::move(count), gradients.sym_size(1)}, gradients.options());
}

// In-place operators have nothing to say about shapes.
template <class... Arguments>
void nothing(Arguments...) {}

std::tuple<at::Tensor, at::Tensor> coalesce_counting(const at::Tensor& rows,
                                                     const at::Tensor& gradients,
                                                     int64_t table_rows) {
  return coalesce(rows, gradients, table_rows);
}

// coalesce has no meta kernel: the number of distinct rows is in the data.
template <class Library>
void implement(Library& m) {
  m.impl("lookup", on_its_device<lookup>);
  m.impl("pooled_lookup", on_its_device<pooled_lookup>);
  m.impl("pooled_gradients", on_its_device<pooled_gradients>);
  m.impl("coalesce", on_its_device<coalesce_counting>);
  m.impl("apply_sgd", on_its_device<apply_sgd>);
  m.impl("apply_rowwise_adagrad", on_its_device<apply_rowwise_adagrad>);
  m.impl("apply_adam", on_its_device<apply_adam>);
  m.impl("update_sgd", on_its_device<update_sgd>);
  m.impl("update_rowwise_adagrad", on_its_device<update_rowwise_adagrad>);
  m.impl("update_adam", on_its_device<update_adam>);
  m.impl("init_rows", on_its_device<init_rows>);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tautline, m) {
  m.def("lookup(Tensor table, Tensor rows, ScalarType out_type) -> Tensor");
  m.def(
      "pooled_lookup(Tensor table, Tensor rows, Tensor offsets, bool mean, ScalarType out_type) -> "
      "Tensor");
  m.def("pooled_gradients(Tensor gradients, Tensor offsets, SymInt count, bool mean) -> Tensor");
  m.def("coalesce(Tensor rows, Tensor gradients, int table_rows) -> (Tensor, Tensor)");
  m.def(
      "apply_sgd(Tensor(a!) table, Tensor rows, Tensor sums, float lr, float weight_decay) -> ()");
  m.def(
      "apply_rowwise_adagrad(Tensor(a!) table, Tensor(b!) state, Tensor rows, Tensor sums, float "
      "lr, "
      "float eps, float weight_decay) -> ()");
  m.def(
      "apply_adam(Tensor(a!) table, Tensor(b!) moment1, Tensor(c!) moment2, Tensor rows, Tensor "
      "sums, "
      "int step, float lr, float beta1, float beta2, float eps, float weight_decay) -> ()");
  m.def(
      "update_rowwise_adagrad(Tensor(a!) table, Tensor(b!) state, Tensor rows, Tensor gradients, "
      "float lr, float eps, float weight_decay) -> ()");
  m.def(
      "update_sgd(Tensor(a!) table, Tensor rows, Tensor gradients, float lr, float weight_decay) "
      "-> ()");
  m.def(
      "update_adam(Tensor(a!) table, Tensor(b!) moment1, Tensor(c!) moment2, Tensor rows, Tensor "
      "gradients, int step, float lr, float beta1, float beta2, float eps, float weight_decay) -> "
      "()");
  m.def(
      "init_rows(Tensor(a!) table, int seed, int table_index, int first_row, int stride, float "
      "std) -> "
      "()");
}

TORCH_LIBRARY_IMPL(tautline, CPU, m) { implement(m); }
TORCH_LIBRARY_IMPL(tautline, CUDA, m) { implement(m); }

TORCH_LIBRARY_IMPL(tautline, Meta, m) {
  m.impl("lookup", lookup_meta);
  m.impl("pooled_lookup", pooled_lookup_meta);
  m.impl("pooled_gradients", pooled_gradients_meta);
  m.impl("apply_sgd", nothing<at::Tensor&, const at::Tensor&, const at::Tensor&, double, double>);
  m.impl("apply_rowwise_adagrad", nothing<at::Tensor&, at::Tensor&, const at::Tensor&,
                                          const at::Tensor&, double, double, double>);
  m.impl("apply_adam", nothing<at::Tensor&, at::Tensor&, at::Tensor&, const at::Tensor&,
                               const at::Tensor&, int64_t, double, double, double, double, double>);
  m.impl("update_rowwise_adagrad", nothing<at::Tensor&, at::Tensor&, const at::Tensor&,
                                           const at::Tensor&, double, double, double>);
  m.impl("update_sgd", nothing<at::Tensor&, const at::Tensor&, const at::Tensor&, double, double>);
  m.impl("update_adam",
         nothing<at::Tensor&, at::Tensor&, at::Tensor&, const at::Tensor&, const at::Tensor&,
                 int64_t, double, double, double, double, double>);
  m.impl("init_rows", nothing<at::Tensor&, int64_t, int64_t, int64_t, int64_t, double>);
}

}  // namespace tautline::ops
