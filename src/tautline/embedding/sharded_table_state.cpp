// The other sides of a sharded table: its rows as classes of a full softmax, and its state for
// checkpoints.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "tautline/base/error.h"
#include "tautline/embedding/sharded_table.h"

namespace tautline::embedding {

// Copies share the classes like a row-wise table would hold them.
at::Tensor ShardedTable::class_rows() const {
  if (config_.hash_ways > 0)
    throw user_error("table '", name_, "' is hashed: its rows are no classes; full softmax needs ",
                     "direct ids (hash_ways 0)");
  if (plan_.sharding != Sharding::kDataParallel || communicator_.size() == 1) return weight_;
  return weight_.slice(0, communicator_.rank(), rows_, communicator_.size());
}

int64_t ShardedTable::class_first() const {
  return plan_.sharding == Sharding::kDataParallel ? communicator_.rank()
                                                   : placement_.first(communicator_.rank());
}

int64_t ShardedTable::class_stride() const {
  return plan_.sharding == Sharding::kDataParallel ? communicator_.size() : placement_.stride();
}

// [c, E] of this rank's share -> [R, E] of all: the shares interleave.
at::Tensor ShardedTable::gather_class_gradient(const at::Tensor& gradient) {
  const int64_t world = communicator_.size();
  if (plan_.sharding != Sharding::kDataParallel || world == 1) return gradient.clone();
  const int64_t most = (rows_ + world - 1) / world;
  at::Tensor padded = at::zeros({most, width_}, gradient.options());
  padded.narrow(0, 0, gradient.size(0)).copy_(gradient);
  at::Tensor all = at::empty({world * most, width_}, gradient.options());
  communicator_.all_gather(all, padded, name_ + ".class_gradients").wait();
  return all.view({world, most, width_})
      .transpose(0, 1)
      .reshape({world * most, width_})
      .narrow(0, 0, rows_);
}

Touched ShardedTable::add_dense_gradient(const Touched& touched, const at::Tensor& gradient) {
  const at::Tensor classes = class_rows();
  TAUTLINE_INVARIANT(gradient.sizes() == classes.sizes(),
                     "class gradient of table " << name_ << " has shape " << gradient.sizes()
                                                << " for rows of shape " << classes.sizes());
  at::Tensor sums = gather_class_gradient(gradient.to(at::kFloat));
  sums.index_add_(0, touched.rows, touched.sums);  // rows are distinct: one addition each
  return {at::arange(rows_held(), touched.rows.options()), sums};
}

std::vector<TableState> ShardedTable::state() const {
  const int rank = communicator_.rank();
  const bool copy = plan_.sharding == Sharding::kDataParallel && rank != 0;
  std::vector<TableState> states;
  const auto add = [&](const char* kind, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    states.push_back({name_, kind, tensor.dim() == 1 ? tensor.unsqueeze(1) : tensor,
                      placement_.first(rank), placement_.stride(), rows_, !copy});
  };
  const bool adam = config_.optimizer.kind == TableOptimizer::Kind::kAdam;
  add("weight", weight_);
  add(adam ? "adam_m" : "adagrad_sum", state1_);
  add("adam_v", state2_);
  return states;
}

int64_t ShardedTable::load(const std::string& kind, const at::Tensor& saved, int64_t first,
                           int64_t stride) {
  for (const TableState& mine : state()) {
    if (mine.kind != kind) continue;
    if (saved.dim() != 2 || saved.size(1) != mine.tensor.size(1))
      throw user_error("the saved ", kind, " of table '", name_, "' has width ",
                       saved.dim() == 2 ? saved.size(1) : 0, "; the model's is ",
                       mine.tensor.size(1));
    const int64_t last = first + (saved.size(0) - 1) * stride;
    if (saved.size(0) > 0 && (first < 0 || last >= rows_))
      throw user_error("the saved ", kind, " of table '", name_, "' has row ", last,
                       "; the model's table has ", rows_, " rows");
    const int rank = communicator_.rank();
    const at::Tensor row = at::arange(saved.size(0), at::kLong).mul(stride).add(first);
    at::Tensor here = row.ge(0);
    if (plan_.sharding == Sharding::kRowWise) here = row.remainder(placement_.world).eq(rank);
    if (placement_.held(rank) == 0) here = row.lt(0);
    const at::Tensor from = here.nonzero().view({-1});
    const at::Tensor to = row.index_select(0, from).div(placement_.stride(), "floor");
    mine.tensor.index_copy_(
        0, to.to(mine.tensor.device()),
        saved.index_select(0, from.to(saved.device())).to(mine.tensor.device()));
    return from.size(0);
  }
  throw user_error("table '", name_, "' has no ", kind, ": its optimiser is another one than that ",
                   "of the checkpoint");
}

}  // namespace tautline::embedding
