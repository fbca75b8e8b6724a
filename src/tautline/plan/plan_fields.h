// The YAML of a Plan and of the requests that a run makes of the planner.
#pragma once

#include <array>
#include <utility>

#include "tautline/base/config.h"
#include "tautline/plan/plan.h"

namespace tautline {

constexpr auto choices(Sharding*) {
  return std::array{std::pair{Sharding::kTableWise, "table_wise"},
                    std::pair{Sharding::kRowWise, "row_wise"},
                    std::pair{Sharding::kDataParallel, "data_parallel"}};
}
constexpr auto choices(BalancePlan::Deal*) {
  return std::array{std::pair{BalancePlan::Deal::kInOrder, "in_order"},
                    std::pair{BalancePlan::Deal::kByLength, "by_length"}};
}
constexpr auto choices(PrecisionPlan::Compute*) {
  return std::array{std::pair{PrecisionPlan::Compute::kFp32, "fp32"},
                    std::pair{PrecisionPlan::Compute::kBf16, "bf16"}};
}

template <class V>
void fields(V& v, TablePlan& x) {
  v("sharding", x.sharding, "table_wise, row_wise or data_parallel");
  if (x.sharding == Sharding::kTableWise) v("owner", x.owner, "rank that holds the table");
  v("because", x.because, "the figures that decided");
}

template <class V>
void fields(V& v, DenseGradientPlan& x) {
  v.bytes("bucket", x.bucket_bytes, "gradients summed over ranks in pieces of this size");
  v("overlap", x.overlap, "sum a bucket while the backward still runs");
}

template <class V>
void fields(V& v, BalancePlan& x) {
  v("deal", x.deal, "samples of a step to ranks: by_length evens out their work");
  v("base_batch", x.base_batch, "0: off; else base batch shuffling in pieces of this many samples");
}

template <class V>
void fields(V& v, Plan& x) {
  v.section("for", "what the Plan was made for", [&](auto& made_for) {
    made_for("cluster", x.cluster, "name of the Cluster");
    made_for("devices", x.devices, "ranks; for another number the Plan is derived anew");
    made_for("model", x.model, "name of the model");
  });
  v("tables", x.tables, "where each table lives, and why");
  v.section("collectives", "what goes over the wire, and how", [&](auto& collectives) {
    collectives("dense_gradient", x.dense_gradient, "all-reduce of the dense gradients");
  });
  v("balance", x.balance, "which samples a rank gets");
  v("precision", x.precision.compute, "of dense matrix products; sums and tables stay fp32");
}

template <class V>
void fields(V& v, PlanRequest& x) {
  v("file", x.file, "a saved Plan to execute as it is; empty: derive one");
  v("tables", x.tables, "sharding by table: auto, table_wise, row_wise, data_parallel");
  v.section("collectives", "what goes over the wire, and how", [&](auto& collectives) {
    collectives("dense_gradient", x.dense_gradient, "all-reduce of the dense gradients");
  });
  v("balance", x.balance, "which samples a rank gets");
  v.one_of("precision", x.compute, {"auto", "fp32", "bf16"},
           "of dense matrix products; auto: bf16 on GPUs, fp32 on CPUs");
}

/// Errors: devices below 1, an owner that is no rank, a bucket of no size.
void validate(const Plan& plan, const Provenance& at = {});
/// Errors: a sharding that does not exist (with the nearest that does).
void validate(const PlanRequest& request, const Provenance& at = {}, const std::string& path = "");

/// Sixteen hexadecimal digits over the Plan's YAML: equal Plans, equal digests. Names a Plan in
/// Timelines and checkpoints.
std::string digest(const Plan& plan);

/// A table for terminals: every table's place with the reason, then the switches.
std::string printed(const Plan& plan);

/// Reads a saved Plan for this many ranks. Errors: the file's; a Plan made for another number of
/// ranks (with how to derive it anew); a Plan that lacks a table of the model or has one more.
Plan read_plan_for(const std::string& path, int ranks, const std::vector<std::string>& tables);

}  // namespace tautline
