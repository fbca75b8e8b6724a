// One embedding table over W ranks. A lookup is five calls, each of which can be overlapped,
// clipped, skipped or replaced alone (prefetch, accumulation, skip on NaN):
//
//   Route route = table.start_ids(ids);              // ids to the ranks that hold their rows
//   at::Tensor rows = table.look_up(route);          // [received, E] on the holding rank
//   at::Tensor out = table.return_rows(route, rows); // [n, E] back where the ids came from
//   ... forward, backward: gradients [n, E] ...
//   Touched touched = table.coalesce(route, grads);  // each touched row once, with its sum
//   table.apply(touched);                            // exact optimiser: only touched rows change
//
// Where nothing lies between the last two, table.apply_gradients(route, gradients) does both, and
// on a GPU the host does not wait for it.
//
// All ranks call the same things in the same order. Several requests of one step (a sequence,
// positives, negatives) are one request: concatenate the ids. n may be 0, on any rank.
//
// Sharding (plan/plan.h): row-wise puts row r on rank r % W as local row r / W; table-wise keeps
// all rows on the owner; data-parallel keeps a copy everywhere, whose touched rows are summed over
// ranks. Hashed tables (hash.h): `hash_ways` sub-tables of width E / ways; sub-table w's row h is
// row w * rows + h of one table of ways * rows rows, so routing and optimisers know nothing of
// hashing.
//
// Deterministic: sums run in the order (row, source rank, position), with no atomics.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tautline/comm/communicator.h"
#include "tautline/embedding/placement.h"
#include "tautline/plan/plan.h"
#include "tautline/workload/model.h"

namespace tautline::embedding {

/// A request under way: made by start_ids, used by the next three calls, then thrown away.
/// n asked rows (ids times hash ways), u of them distinct, m asked of this rank by all ranks.
struct Route {
  int64_t ids = 0;  // asked for by the caller
  // [u] local row on its holder, by (holder, row); longer until the counts are known
  at::Tensor unique;
  // [n] where among `unique` each asked row stands; undefined: the identity
  at::Tensor inverse;
  // [m] local rows that this rank was asked for, by source rank
  at::Tensor received;
  std::vector<int64_t> send_splits, receive_splits;  // [W] rows
  enum class Stage { kCounts, kIds } stage = Stage::kCounts;

  // Exchanges under way
  at::Tensor counts, counts_received, wrong_id;
  at::Tensor rows_back, sums_received;  // [u, E'], [m, E']
  comm::Work counts_work, ids_work, rows_work, gradients_work;
};

/// Each touched row of this rank once, ascending, with the sum of its gradients over all ranks.
struct Touched {
  at::Tensor rows;  // [k] int64, local
  at::Tensor sums;  // [k, E]
};

/// One tensor of a rank's share, as a checkpoint holds it: local row l is global row
/// first + l * stride.
struct TableState {
  std::string table;
  std::string kind;   // weight, adagrad_sum, adam_m, adam_v
  at::Tensor tensor;  // [local rows, width]; a view: writing to it writes the table
  int64_t first = 0, stride = 1;
  int64_t global_rows = 0;
  bool saved_here = true;  // false: another rank saves the same rows (data-parallel copies)
};

struct ShardedTableOptions {
  bool deduplicate = true;  // send each distinct id of a rank once; off: as they come
  uint64_t seed = 1;        // of the initial rows, which depend on (seed, name, global row) alone
};

class ShardedTable {
 public:
  /// Throws UserError where the config cannot be (dim not divisible by ways, owner beyond the
  /// ranks, no rows).
  ShardedTable(std::string name, const TableConfig& config, const TablePlan& plan,
               comm::Communicator communicator, const ShardedTableOptions& options = {});

  /// ids [n] int64 on the table's device. The exchange of the counts is under way when this
  /// returns. kChecked: the caller knows that all of them lie in the table (a GPU would end the
  /// process for a wrong one).
  enum class Ids { kUnchecked, kChecked };
  Route start_ids(const at::Tensor& ids, Ids check = Ids::kUnchecked);
  /// Optional: starts the exchange of the ids (needs the counts on the host; the one
  /// synchronisation of a lookup, none on one rank where ids are checked). `look_up` does it where
  /// it has not been done. Throws UserError for an id beyond the table.
  void send_ids(Route& route);
  /// [m, E']: the rows that this rank was asked for.
  at::Tensor look_up(Route& route);
  /// Optional: starts the exchange of the looked-up rows, so that several tables' overlap.
  void send_rows(Route& route, const at::Tensor& rows);
  /// [ids, E] for the ids of start_ids, in their order; `rows` as look_up gave them.
  at::Tensor return_rows(Route& route, const at::Tensor& rows);
  /// Optional: sums the gradients of each distinct row on this rank and starts their exchange.
  void send_gradients(Route& route, const at::Tensor& gradients);
  /// gradients [ids, E].
  Touched coalesce(Route& route, const at::Tensor& gradients);
  /// The optimiser's step; `rate` scales the learning rate (warm-up). Counts one step even where
  /// nothing was touched.
  void apply(const Touched& touched, double rate = 1.0);
  /// coalesce and apply in one, the same bits.
  void apply_gradients(Route& route, const at::Tensor& gradients, double rate = 1.0);

  // Full softmax over the rows as classes (direct ids only): this rank's share of the classes.
  /// [c, E] view: class of row l is class_first() + l * class_stride(). Disjoint over ranks,
  /// together all rows.
  at::Tensor class_rows() const;
  int64_t class_first() const;
  int64_t class_stride() const;
  /// Adds the gradient [c, E] of class_rows() to what was touched: then all rows of the share are.
  Touched add_dense_gradient(const Touched& touched, const at::Tensor& gradient);

  // Checkpoints
  std::vector<TableState> state() const;
  /// Copies those rows of a saved tensor (rows first + l * stride of the whole table) that this
  /// rank holds. Returns how many: over all saved tensors of a kind they must add to rows_held().
  int64_t load(const std::string& kind, const at::Tensor& saved, int64_t first, int64_t stride);
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

  const std::string& name() const { return name_; }
  const TableConfig& config() const { return config_; }
  const TablePlan& plan() const { return plan_; }
  int64_t rows() const { return rows_; }                 // over all ranks and hash ways
  int64_t rows_held() const { return weight_.size(0); }  // on this rank
  int64_t dim() const { return config_.dim; }
  at::Tensor weight() const { return weight_; }  // [rows held, E / ways]

 private:
  at::Tensor asked_rows(const at::Tensor& ids, Ids check, Route& route) const;
  void check_gradients(const Route& route, const at::Tensor& gradients) const;
  bool exchanges() const;  // rows may lie on another rank
  Touched sum_over_copies(const Touched& mine);
  at::Tensor gather_class_gradient(const at::Tensor& gradient);

  std::string name_;
  TableConfig config_;
  TablePlan plan_;
  comm::Communicator communicator_;
  ShardedTableOptions options_;
  Placement placement_;
  int64_t rows_ = 0;   // over hash ways
  int64_t width_ = 0;  // E' = E / ways
  int64_t steps_ = 0;
  at::Tensor weight_;           // [local, E']
  at::Tensor state1_, state2_;  // adagrad_sum [local]; or adam_m, adam_v [local, E']
};

}  // namespace tautline::embedding
