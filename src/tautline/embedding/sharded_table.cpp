#include "tautline/embedding/sharded_table.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "tautline/base/error.h"
#include "tautline/base/random.h"
#include "tautline/embedding/hash.h"
#include "tautline/embedding/routing.h"
#include "tautline/ops/embedding.h"

namespace tautline::embedding {
namespace {

using Kind = TableOptimizer::Kind;

void check(const std::string& name, const TableConfig& config, const TablePlan& plan, int world) {
  if (config.rows < 1)
    throw user_error("table '", name, "' has ", config.rows, " rows; it needs one or more");
  if (config.dim < 1 || config.hash_ways < 0)
    throw user_error("table '", name, "' has dim ", config.dim, " and ", config.hash_ways,
                     " hash ways; dim from 1 on and ways from 0 on are right");
  if (config.hash_ways > 0 && config.dim % config.hash_ways != 0)
    throw user_error("table '", name, "': dim ", config.dim, " is no multiple of its ",
                     config.hash_ways, " hash ways");
  if (plan.sharding == Sharding::kTableWise && (plan.owner < 0 || plan.owner >= world))
    throw user_error("the plan puts table '", name, "' on rank ", plan.owner, " of ", world,
                     " ranks; derive the plan anew for this number of ranks");
}

// The initial rows' key: tables of one seed differ by their names.
int64_t key_of(uint64_t seed, const std::string& name) {
  uint64_t hash = 14695981039346656037ull;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return static_cast<int64_t>(avalanche(avalanche(seed) + hash));
}

}  // namespace

ShardedTable::ShardedTable(std::string name, const TableConfig& config, const TablePlan& plan,
                           comm::Communicator communicator, const ShardedTableOptions& options)
    : name_(std::move(name)),
      config_(config),
      plan_(plan),
      communicator_(std::move(communicator)),
      options_(options) {
  check(name_, config_, plan_, communicator_.size());
  const int64_t ways = std::max<int64_t>(1, config_.hash_ways);
  rows_ = config_.rows * ways;
  width_ = config_.dim / ways;
  placement_ = {plan_.sharding, rows_, communicator_.size(),
                plan_.sharding == Sharding::kTableWise ? plan_.owner : 0};
  const int rank = communicator_.rank();
  const int64_t held = placement_.held(rank);
  const auto options32 = at::TensorOptions().dtype(at::kFloat).device(communicator_.device());
  weight_ = at::empty({held, width_}, options32);
  ops::init_rows(weight_, key_of(options_.seed, name_), 0, placement_.first(rank),
                 placement_.stride(), config_.init_std);
  if (config_.optimizer.kind == Kind::kRowwiseAdagrad) state1_ = at::zeros({held}, options32);
  if (config_.optimizer.kind == Kind::kAdam) {
    state1_ = at::zeros({held, width_}, options32);
    state2_ = at::zeros({held, width_}, options32);
  }
}

bool ShardedTable::exchanges() const {
  return communicator_.size() > 1 && plan_.sharding != Sharding::kDataParallel;
}

// Direct ids must lie in the table. On a device the check travels with the counts, so that it costs
// no synchronisation of its own; until then a wrong id stands for row 0.
at::Tensor ShardedTable::asked_rows(const at::Tensor& ids, Ids check, Route& route) const {
  if (config_.hash_ways > 0) return hash_rows(ids, config_.hash_ways, config_.rows);
  if (ids.numel() == 0 || check == Ids::kChecked) return ids;
  const at::Tensor wrong = ids.lt(0).logical_or(ids.ge(rows_));
  if (!ids.is_cpu()) {
    // 0: none; else the largest wrong id's distance, coded so that it survives a maximum.
    route.wrong_id = at::cat(
        {wrong.any().to(at::kLong).view({1}), at::where(wrong, ids, INT64_MIN).max().view({1})});
    return ids.masked_fill(wrong, 0);
  }
  const auto [least, most] = at::aminmax(ids);
  const int64_t low = least.item<int64_t>(), high = most.item<int64_t>();
  if (low < 0 || high >= rows_)
    throw user_error("id ", low < 0 ? low : high, " is beyond table '", name_, "' of ", rows_,
                     " rows; ids from 0 to ", rows_ - 1, " are right");
  return ids;
}

Route ShardedTable::start_ids(const at::Tensor& ids, Ids check) {
  TAUTLINE_INVARIANT(ids.dim() == 1 && ids.scalar_type() == at::kLong,
                     "ids of table " << name_ << " have shape " << ids.sizes());
  Route route;
  route.ids = ids.size(0);
  const at::Tensor rows = asked_rows(ids.contiguous(), check, route);
  if (!exchanges()) {
    route.unique = route.received = rows;
    return route;
  }
  const Groups groups = group_by_holder(rows, placement_, options_.deduplicate);
  route.unique = groups.local;
  route.inverse = groups.inverse;
  route.counts = groups.counts;
  route.counts_received = at::empty_like(groups.counts);
  const std::vector<int64_t> ones(static_cast<size_t>(communicator_.size()), 1);
  route.counts_work = communicator_.all_to_all_rows(route.counts_received, route.counts, ones, ones,
                                                    name_ + ".counts");
  return route;
}

void ShardedTable::send_ids(Route& route) {
  if (route.stage == Route::Stage::kIds) return;
  route.stage = Route::Stage::kIds;
  const bool exchange = exchanges();
  if (exchange) route.counts_work.wait();
  if (!exchange && !route.wrong_id.defined()) return;
  // Everything that the host must know, in one copy.
  std::vector<at::Tensor> parts;
  if (exchange) parts = {route.counts, route.counts_received};
  if (route.wrong_id.defined()) parts.push_back(route.wrong_id);
  const at::Tensor host = at::cat(parts).cpu();
  const int64_t* values = host.const_data_ptr<int64_t>();
  const int64_t* end = values + host.numel();
  if (route.wrong_id.defined() && end[-2] != 0)
    throw user_error("an id is beyond table '", name_, "' of ", rows_,
                     " rows (the largest such id is ", end[-1], "); ids from 0 to ", rows_ - 1,
                     " are right");
  if (!exchange) return;
  const int64_t world = communicator_.size();
  route.send_splits.assign(values, values + world);
  route.receive_splits.assign(values + world, values + 2 * world);
  int64_t sent = 0, received = 0;
  for (int64_t rank = 0; rank < world; ++rank) {
    sent += values[rank];
    received += values[world + rank];
  }
  route.unique = route.unique.narrow(0, 0, sent);
  route.received = at::empty({received}, route.unique.options());
  route.ids_work = communicator_.all_to_all_rows(route.received, route.unique, route.receive_splits,
                                                 route.send_splits, name_ + ".ids");
}

at::Tensor ShardedTable::look_up(Route& route) {
  send_ids(route);
  route.ids_work.wait();
  return ops::lookup(weight_, route.received, at::kFloat);
}

void ShardedTable::send_rows(Route& route, const at::Tensor& rows) {
  if (!exchanges() || route.rows_back.defined()) return;
  route.rows_back = at::empty({route.unique.size(0), width_}, rows.options());
  route.rows_work = communicator_.all_to_all_rows(
      route.rows_back, rows.contiguous(), route.send_splits, route.receive_splits, name_ + ".rows");
}

at::Tensor ShardedTable::return_rows(Route& route, const at::Tensor& rows) {
  if (!exchanges()) return rows.view({route.ids, config_.dim});
  send_rows(route, rows);
  route.rows_work.wait();
  const at::Tensor back = std::move(route.rows_back);
  route.rows_back = at::Tensor();
  return ops::lookup(back, route.inverse, back.scalar_type()).view({route.ids, config_.dim});
}

void ShardedTable::send_gradients(Route& route, const at::Tensor& gradients) {
  if (!exchanges() || route.sums_received.defined()) return;
  const at::Tensor asked = gradients.contiguous().view({-1, width_});
  const int64_t distinct = route.unique.size(0);  // each of them is in `inverse`
  at::Tensor sums = std::get<1>(ops::coalesce(route.inverse, asked, distinct, distinct));
  route.sums_received = at::empty({route.received.size(0), width_}, sums.options());
  route.gradients_work = communicator_.all_to_all_rows(
      route.sums_received, sums, route.receive_splits, route.send_splits, name_ + ".gradients");
}

void ShardedTable::check_gradients(const Route& route, const at::Tensor& gradients) const {
  TAUTLINE_INVARIANT(
      gradients.dim() == 2 && gradients.size(0) == route.ids && gradients.size(1) == dim(),
      "gradients of table " << name_ << " have shape " << gradients.sizes() << " for " << route.ids
                            << " ids of width " << dim());
}

Touched ShardedTable::coalesce(Route& route, const at::Tensor& gradients) {
  check_gradients(route, gradients);
  if (!exchanges()) {
    auto [rows, sums] =
        ops::coalesce(route.received, gradients.contiguous().view({-1, width_}), rows_);
    return sum_over_copies({rows, sums});
  }
  send_gradients(route, gradients);
  route.gradients_work.wait();
  auto [rows, sums] = ops::coalesce(route.received, route.sums_received, rows_held());
  route.sums_received = at::Tensor();
  return {rows, sums};
}

// Data-parallel copies: every rank gets all ranks' touched rows, padded with "none" (-1) to the
// longest, and adds them up in the order of ranks, so that all copies stay equal bit for bit.
Touched ShardedTable::sum_over_copies(const Touched& mine) {
  const int64_t world = communicator_.size();
  if (world == 1) return mine;
  const int64_t count = mine.rows.size(0);
  at::Tensor counts = at::empty({world}, mine.rows.options());
  communicator_
      .all_gather(counts, at::full({1}, count, mine.rows.options()), name_ + ".touched_counts")
      .wait();
  const int64_t most = counts.max().item<int64_t>();
  at::Tensor rows = at::full({most}, -1, mine.rows.options());
  at::Tensor sums = at::zeros({most, width_}, mine.sums.options());
  rows.narrow(0, 0, count).copy_(mine.rows);
  sums.narrow(0, 0, count).copy_(mine.sums);
  at::Tensor all_rows = at::empty({world * most}, rows.options());
  at::Tensor all_sums = at::empty({world * most, width_}, sums.options());
  comm::Work rows_work = communicator_.all_gather(all_rows, rows, name_ + ".touched_rows");
  communicator_.all_gather(all_sums, sums, name_ + ".touched_sums").wait();
  rows_work.wait();
  auto [out_rows, out_sums] = ops::coalesce(all_rows, all_sums, rows_);
  return {out_rows, out_sums};
}

void ShardedTable::apply(const Touched& touched, double rate) {
  const TableOptimizer& optimizer = config_.optimizer;
  const double lr = optimizer.lr * rate;
  ++steps_;
  switch (optimizer.kind) {
    case Kind::kSgd:
      return ops::apply_sgd(weight_, touched.rows, touched.sums, lr, optimizer.weight_decay);
    case Kind::kRowwiseAdagrad:
      return ops::apply_rowwise_adagrad(weight_, state1_, touched.rows, touched.sums, lr,
                                        optimizer.eps, optimizer.weight_decay);
    case Kind::kAdam:
      return ops::apply_adam(weight_, state1_, state2_, touched.rows, touched.sums, steps_, lr,
                             optimizer.beta1, optimizer.beta2, optimizer.eps,
                             optimizer.weight_decay);
  }
}

void ShardedTable::apply_gradients(Route& route, const at::Tensor& gradients, double rate) {
  const bool copies = communicator_.size() > 1 && !exchanges();
  if (copies) return apply(coalesce(route, gradients), rate);
  check_gradients(route, gradients);
  at::Tensor of_rows = gradients.contiguous().view({-1, width_});
  if (exchanges()) {
    send_gradients(route, gradients);
    route.gradients_work.wait();
    of_rows = std::move(route.sums_received);
    route.sums_received = at::Tensor();
  }
  const TableOptimizer& o = config_.optimizer;
  const double lr = o.lr * rate;
  ++steps_;
  switch (o.kind) {
    case Kind::kSgd:
      return ops::update_sgd(weight_, route.received, of_rows, lr, o.weight_decay);
    case Kind::kRowwiseAdagrad:
      return ops::update_rowwise_adagrad(weight_, state1_, route.received, of_rows, lr, o.eps,
                                         o.weight_decay);
    case Kind::kAdam:
      return ops::update_adam(weight_, state1_, state2_, route.received, of_rows, steps_, lr,
                              o.beta1, o.beta2, o.eps, o.weight_decay);
  }
}

}  // namespace tautline::embedding
