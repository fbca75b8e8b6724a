// Workload x Cluster -> Plan: where each table lives, by weighing every way it could be sharded.
//
// Tables are placed one after the other, the most demanding first. For each, every candidate
// (data-parallel, row-wise, table-wise on each rank) gets the seconds that it adds to each rank's
// step; the candidate with the smallest busiest rank wins (the step waits for that rank), then the
// smallest sum over ranks. What cannot be is rejected with its reason. `because` holds the figures.
//
// Seconds of a table on a rank, W ranks, I lookups a step, E width in FP32:
//   wire    row-wise      (I / W) (W - 1) / W (8 E + 8) bytes: ids out, rows back, gradients out
//           table-wise    owner: I (W - 1) / W (8 E + 8), each other rank: (I / W) (8 E + 8)
//           data-parallel (W - 1) (I / W) (4 E + 8): touched rows and their sums, to all
//   memory  lookups read a row, updates read and write it and its state, on the rank that holds
//           it; data-parallel copies are all updated
//   latency one message a peer and exchange: four exchanges (counts, ids, rows, gradients), or two
// Rates come from the Cluster; what it has not measured is assumed (costs.cpp), and the order of
// the candidates hardly depends on it.
#pragma once

#include <string>

#include "tautline/cluster/cluster.h"
#include "tautline/plan/plan.h"
#include "tautline/workload/model.h"
#include "tautline/workload/workload.h"

namespace tautline::planner {

/// The Plan for this many ranks; or, where the request names a file, that Plan.
/// Errors: a request for a table that the model lacks; a request that cannot be honoured (a full
/// softmax over a table that is not row-wise, a copy that does not fit); a table that fits nowhere;
/// a file made for another number of ranks (it says how to derive the Plan anew).
Plan make_plan(const PlanRequest& request, const ModelConfig& model, const Workload& workload,
               const Cluster& cluster, int devices);

/// What the costs are computed with.
struct Rates {
  double wire_bytes_per_second = 0;
  double latency_seconds = 0;
  double copy_bytes_per_second = 0;
  double memory_bytes_per_rank = 0;  // 0: not known
};
Rates rates_for(const Cluster& cluster, int devices);

/// What one table adds.
struct TableCost {
  double seconds_busiest = 0, seconds_other = 0;  // the owner (or every rank), the rest
  double bytes_busiest = 0, bytes_other = 0;      // resident
};
TableCost table_cost(Sharding sharding, const TableWork& table, const Rates& rates, int devices);

/// Largest copy on every rank, as a share of a rank's memory: a copy costs its memory, its
/// initialisation and its part of each checkpoint W times.
inline constexpr double kReplicaShare = 1.0 / 64;
inline constexpr double kReplicaBytesUnknownMemory = 64.0 * 1024 * 1024;
/// Share of a rank's memory that tables may take; the rest is for activations and the dense part.
inline constexpr double kTableShare = 0.75;

}  // namespace tautline::planner
