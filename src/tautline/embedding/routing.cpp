#include "tautline/embedding/routing.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>

#include "tautline/kernels/embedding_update.h"

namespace tautline::embedding {
namespace {

at::Tensor keys_of(const at::Tensor& rows, const Placement& placement) {
  if (placement.sharding != Sharding::kRowWise) return rows.add(placement.owner * placement.span());
  const at::Tensor local = rows.div(placement.world, "floor");
  return rows.sub(local, placement.world).mul(placement.span()).add(local);
}

Groups group_on_cpu(const at::Tensor& rows, const Placement& placement, bool deduplicate) {
  const int64_t n = rows.numel(), span = placement.span();
  const at::TensorOptions options = rows.options();
  Groups groups{at::empty({n}, options), at::empty({n}, options),
                at::zeros({placement.world}, options)};
  if (n == 0) return groups;
  at::Tensor keys = at::empty({n}, options), order = at::empty({n}, options);
  at::Tensor distinct = at::empty({n}, options), starts = at::empty({n + 1}, options);
  const int64_t* asked = rows.const_data_ptr<int64_t>();
  int64_t* key = keys.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < n; ++i)
    key[i] = placement.holder(asked[i]) * span + placement.local(asked[i]);
  int64_t* position = order.mutable_data_ptr<int64_t>();
  int64_t* run_key = distinct.mutable_data_ptr<int64_t>();
  int64_t* start = starts.mutable_data_ptr<int64_t>();
  const int64_t runs =
      kernels::sort_rows_cpu(key, n, placement.world * span, position, run_key, start);
  int64_t* local = groups.local.mutable_data_ptr<int64_t>();
  int64_t* inverse = groups.inverse.mutable_data_ptr<int64_t>();
  int64_t* counts = groups.counts.mutable_data_ptr<int64_t>();
  for (int64_t run = 0; run < runs; ++run) {
    const int64_t holder = run_key[run] / span;
    counts[holder] += deduplicate ? 1 : start[run + 1] - start[run];
    if (deduplicate) local[run] = run_key[run] - holder * span;
    for (int64_t at = start[run]; at < start[run + 1]; ++at) {
      if (!deduplicate) local[at] = run_key[run] - holder * span;
      inverse[position[at]] = deduplicate ? run : at;
    }
  }
  return groups;
}

}  // namespace

Groups group_by_holder(const at::Tensor& rows, const Placement& placement, bool deduplicate) {
  return rows.is_cpu() ? group_on_cpu(rows, placement, deduplicate)
                       : group_by_holder_generic(rows, placement, deduplicate);
}

// Sorted keys; `run` [n] counts the distinct ones before each place, which is where a key goes and
// what the inverse says. Writes to one place all carry one value, so scatter is deterministic.
Groups group_by_holder_generic(const at::Tensor& rows, const Placement& placement,
                               bool deduplicate) {
  const int64_t n = rows.numel(), span = placement.span();
  const at::TensorOptions options = rows.options();
  Groups groups{at::zeros({n}, options), at::empty({n}, options),
                at::zeros({placement.world}, options)};
  if (n == 0) return groups;
  const auto [keys, order] = keys_of(rows, placement).sort(std::optional<bool>(true), 0, false);
  at::Tensor first = at::ones_like(keys);
  if (deduplicate)
    first.narrow(0, 1, n - 1).copy_(keys.narrow(0, 1, n - 1).ne(keys.narrow(0, 0, n - 1)));
  const at::Tensor before = first.cumsum(0);  // distinct keys up to and with each place
  const at::Tensor run = before.sub(1);
  groups.local.scatter_(0, run, keys.remainder(span));
  groups.inverse.scatter_(0, order, run);
  // Places at which each rank's keys begin, then distinct keys before them.
  const at::Tensor bounds = at::arange(placement.world + 1, options).mul(span);
  const at::Tensor places = at::searchsorted(keys, bounds);
  const at::Tensor reached = before.index_select(0, places.sub(1).clamp_min(0)).mul(places.gt(0));
  groups.counts = reached.diff();
  return groups;
}

}  // namespace tautline::embedding
