#include "tautline/kernels/embedding_update.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "tautline/base/error.h"
#include "tautline/ops/embedding.h"
#include "tautline/ops/embedding_checks.h"

namespace tautline::ops {
namespace {

/// Distinct rows a task takes at least.
int64_t grain(int64_t width) {
  return std::max<int64_t>(1, (int64_t{1} << 14) / std::max<int64_t>(width, 1));
}

kernels::RowGradients gradient_params(const at::Tensor& rows, const at::Tensor& gradients,
                                      int64_t table_rows) {
  check_matrix(gradients, "the gradient");
  if (rows.numel() != gradients.size(0))
    throw user_error("the gradient has ", gradients.size(0), " rows for ", rows.numel(),
                     " ids; one row an id is needed");
  check_rows(rows, table_rows);
  kernels::RowGradients p;
  p.rows = rows.const_data_ptr<int64_t>();
  p.gradients = gradients.const_data_ptr();
  p.type = element_of(gradients.scalar_type(), "the gradient");
  p.count = rows.numel();
  p.width = gradients.size(1);
  p.table_rows = table_rows;
  p.stream = stream_of(gradients);
  return p;
}

kernels::RowUpdate update_params(at::Tensor& table, kernels::RowUpdate::Kind kind, double lr,
                                 double weight_decay) {
  check_matrix(table, "the table");
  kernels::RowUpdate p;
  p.kind = kind;
  p.table = table.mutable_data_ptr();
  p.table_type = element_of(table.scalar_type(), "the table");
  p.table_rows = table.size(0);
  p.width = table.size(1);
  p.lr = static_cast<float>(lr);
  p.decay = static_cast<float>(weight_decay);
  p.stream = stream_of(table);
  return p;
}

void check_width(const at::Tensor& table, const at::Tensor& gradients) {
  if (gradients.dim() == 2 && gradients.size(1) == table.size(1)) return;
  throw user_error("the gradient has ", gradients.dim() == 2 ? gradients.size(1) : 0,
                   " columns, the table ", table.size(1));
}

void apply(const kernels::RowUpdate& p, const at::Tensor& table, const at::Tensor& rows,
           const at::Tensor& sums) {
  const at::Tensor ids = int64_vector(rows, table, "the tensor of rows");
  check_width(table, sums);
  check_state(sums, ids.numel() * p.width, table, "the tensor of sums");
  check_rows(ids, p.table_rows);
  if (ids.numel() == 0 || p.width == 0) return;
  const auto* distinct = ids.const_data_ptr<int64_t>();
  const auto* values = sums.const_data_ptr<float>();
  if (table.is_cpu())
    at::parallel_for(0, ids.numel(), grain(p.width), [&](int64_t a, int64_t b) {
      kernels::apply_rows_cpu(p, distinct, values, a, b);
    });
  else if constexpr (kCudaBuild)
    kernels::apply_rows_cuda(p, distinct, values, ids.numel(), nullptr);
}

/// The runs of a CPU tensor of ids, with the memory that they lie in.
struct OwnedRuns {
  at::Tensor order, rows, starts;
  kernels::RowRuns runs;
};

OwnedRuns sort_rows(const kernels::RowGradients& p, const at::TensorOptions& options) {
  OwnedRuns owned;
  owned.order = at::empty({p.count}, options.dtype(at::kLong));
  owned.rows = at::empty({p.count}, options.dtype(at::kLong));
  owned.starts = at::empty({p.count + 1}, options.dtype(at::kLong));
  auto* order = owned.order.mutable_data_ptr<int64_t>();
  auto* rows = owned.rows.mutable_data_ptr<int64_t>();
  auto* starts = owned.starts.mutable_data_ptr<int64_t>();
  const int64_t distinct =
      kernels::sort_rows_cpu(p.rows, p.count, p.table_rows, order, rows, starts);
  owned.runs = {order, rows, starts, distinct};
  return owned;
}

[[maybe_unused]] at::Tensor workspace_for(const kernels::RowGradients& p,
                                          const at::TensorOptions& options) {
  size_t bytes = 0;
  if constexpr (kCudaBuild) bytes = kernels::update_workspace_bytes(p.count, p.width, p.table_rows);
  return at::empty({static_cast<int64_t>(bytes)}, options.dtype(at::kByte));
}

/// Room for as many distinct rows as there are gradients; how many they are is on the device.
struct DeviceSums {
  at::Tensor rows, sums, distinct;  // [N], [N, E], [1]
};

[[maybe_unused]] DeviceSums coalesce_cuda(const kernels::RowGradients& p,
                                          const at::TensorOptions& options) {
  DeviceSums out{at::empty({p.count}, options.dtype(at::kLong)),
                 at::empty({p.count, p.width}, options.dtype(at::kFloat)),
                 at::empty({1}, options.dtype(at::kLong))};
  at::Tensor workspace = workspace_for(p, options);
  if constexpr (kCudaBuild)
    kernels::coalesce_cuda(p, out.rows.mutable_data_ptr<int64_t>(),
                           out.sums.mutable_data_ptr<float>(),
                           out.distinct.mutable_data_ptr<int64_t>(), workspace.mutable_data_ptr());
  return out;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> coalesce(const at::Tensor& rows, const at::Tensor& gradients,
                                            int64_t table_rows, int64_t distinct) {
  const at::Tensor ids = int64_vector(rows, gradients, "the tensor of rows");
  const kernels::RowGradients p = gradient_params(ids, gradients, table_rows);
  if (!gradients.is_cpu() && p.count > 0) {
    const DeviceSums out = coalesce_cuda(p, gradients.options());
    if (distinct < 0) distinct = out.distinct.item<int64_t>();
    return {out.rows.narrow(0, 0, distinct), out.sums.narrow(0, 0, distinct)};
  }
  if (p.count == 0)
    return {at::empty({0}, ids.options()),
            at::empty({0, p.width}, gradients.options().dtype(at::kFloat))};
  const OwnedRuns owned = sort_rows(p, ids.options());
  const kernels::RowRuns& runs = owned.runs;
  at::Tensor sums = at::empty({runs.count, p.width}, gradients.options().dtype(at::kFloat));
  auto* out = sums.mutable_data_ptr<float>();
  at::parallel_for(0, runs.count, grain(p.width),
                   [&](int64_t a, int64_t b) { kernels::sum_rows_cpu(p, runs, out, a, b); });
  return {owned.rows.narrow(0, 0, runs.count), sums};
}

namespace {

kernels::RowUpdate adagrad_params(at::Tensor& table, at::Tensor& state, double lr, double eps,
                                  double weight_decay) {
  kernels::RowUpdate p =
      update_params(table, kernels::RowUpdate::Kind::kRowwiseAdagrad, lr, weight_decay);
  check_state(state, p.table_rows, table, "the Adagrad state");
  p.state = state.mutable_data_ptr<float>();
  p.eps = static_cast<float>(eps);
  return p;
}

kernels::RowUpdate adam_params(at::Tensor& table, at::Tensor& moment1, at::Tensor& moment2,
                               int64_t step, double lr, double beta1, double beta2, double eps,
                               double weight_decay) {
  kernels::RowUpdate p = update_params(table, kernels::RowUpdate::Kind::kAdam, lr, weight_decay);
  check_state(moment1, table.numel(), table, "Adam's first moment");
  check_state(moment2, table.numel(), table, "Adam's second moment");
  if (step < 1) throw user_error("Adam's step is ", step, "; it counts from 1");
  p.moment1 = moment1.mutable_data_ptr<float>();
  p.moment2 = moment2.mutable_data_ptr<float>();
  p.eps = static_cast<float>(eps);
  p.beta1 = static_cast<float>(beta1);
  p.beta2 = static_cast<float>(beta2);
  p.step = step;
  return p;
}

[[maybe_unused]] void update_cuda(const kernels::RowUpdate& p, const kernels::RowGradients& g,
                                  const at::TensorOptions& options) {
  if (p.kind != kernels::RowUpdate::Kind::kAdam) {
    at::Tensor workspace = workspace_for(g, options);
    if constexpr (kCudaBuild) kernels::update_rows_cuda(p, g, workspace.mutable_data_ptr());
    return;
  }
  // Sums are stored, but how many there are stays on the device.
  const DeviceSums sums = coalesce_cuda(g, options);
  if constexpr (kCudaBuild)
    kernels::apply_rows_cuda(p, sums.rows.const_data_ptr<int64_t>(),
                             sums.sums.const_data_ptr<float>(), g.count,
                             sums.distinct.const_data_ptr<int64_t>());
}

void update(const kernels::RowUpdate& p, const at::Tensor& table, const at::Tensor& rows,
            const at::Tensor& gradients) {
  check_width(table, gradients);
  const at::Tensor ids = int64_vector(rows, table, "the tensor of rows");
  const kernels::RowGradients g = gradient_params(ids, gradients, p.table_rows);
  if (g.count == 0 || g.width == 0) return;
  if (!table.is_cpu()) return update_cuda(p, g, table.options());
  const OwnedRuns owned = sort_rows(g, ids.options());
  at::parallel_for(0, owned.runs.count, grain(p.width),
                   [&](int64_t a, int64_t b) { kernels::update_rows_cpu(p, g, owned.runs, a, b); });
}

}  // namespace

void apply_sgd(at::Tensor& table, const at::Tensor& rows, const at::Tensor& sums, double lr,
               double weight_decay) {
  apply(update_params(table, kernels::RowUpdate::Kind::kSgd, lr, weight_decay), table, rows, sums);
}

void apply_rowwise_adagrad(at::Tensor& table, at::Tensor& state, const at::Tensor& rows,
                           const at::Tensor& sums, double lr, double eps, double weight_decay) {
  apply(adagrad_params(table, state, lr, eps, weight_decay), table, rows, sums);
}

void apply_adam(at::Tensor& table, at::Tensor& moment1, at::Tensor& moment2, const at::Tensor& rows,
                const at::Tensor& sums, int64_t step, double lr, double beta1, double beta2,
                double eps, double weight_decay) {
  apply(adam_params(table, moment1, moment2, step, lr, beta1, beta2, eps, weight_decay), table,
        rows, sums);
}

void update_sgd(at::Tensor& table, const at::Tensor& rows, const at::Tensor& gradients, double lr,
                double weight_decay) {
  update(update_params(table, kernels::RowUpdate::Kind::kSgd, lr, weight_decay), table, rows,
         gradients);
}

void update_rowwise_adagrad(at::Tensor& table, at::Tensor& state, const at::Tensor& rows,
                            const at::Tensor& gradients, double lr, double eps,
                            double weight_decay) {
  update(adagrad_params(table, state, lr, eps, weight_decay), table, rows, gradients);
}

void update_adam(at::Tensor& table, at::Tensor& moment1, at::Tensor& moment2,
                 const at::Tensor& rows, const at::Tensor& gradients, int64_t step, double lr,
                 double beta1, double beta2, double eps, double weight_decay) {
  update(adam_params(table, moment1, moment2, step, lr, beta1, beta2, eps, weight_decay), table,
         rows, gradients);
}

}  // namespace tautline::ops
