// The noun Plan: how we do it, complete. The planner derives it from a run's requests; it is saved
// beside the run and printed before anything is allocated. Every switch has an off value.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tautline {

enum class Sharding {
  kTableWise,     // the whole table on one rank
  kRowWise,       // row r on rank r % W, as local row r / W
  kDataParallel,  // a copy on every rank, gradients summed over ranks
};

struct TablePlan {
  Sharding sharding = Sharding::kRowWise;
  int owner = 0;        // table-wise: the rank that holds it
  std::string because;  // one sentence with the figures that decided
  bool operator==(const TablePlan&) const = default;
};

struct DenseGradientPlan {
  double bucket_bytes = 25 * 1024.0 * 1024.0;
  bool overlap = true;  // all-reduce a bucket while the backward still runs
  bool operator==(const DenseGradientPlan&) const = default;
};

struct BalancePlan {
  enum class Deal { kInOrder, kByLength };
  Deal deal = Deal::kByLength;  // samples of a step to ranks
  int64_t base_batch = 0;       // 0: off; else base batch shuffling with base batches of this size
  bool operator==(const BalancePlan&) const = default;
};

struct PrecisionPlan {
  enum class Compute { kFp32, kBf16 };
  Compute compute =
      Compute::kFp32;  // of the dense matrix products; sums, parameters and tables stay FP32
  bool operator==(const PrecisionPlan&) const = default;
};

struct Plan {
  std::string cluster;
  int devices = 1;  // ranks it was made for; another number is derived anew from the same request
  std::string model;
  std::map<std::string, TablePlan> tables;
  DenseGradientPlan dense_gradient;
  BalancePlan balance;
  PrecisionPlan precision;
  bool operator==(const Plan&) const = default;
};

/// A wish, in a run's `plan:` section. Absent fields are the planner's to choose.
struct PlanRequest {
  std::string file;                           // a saved Plan to execute as it is; empty: derive one
  std::map<std::string, std::string> tables;  // name -> sharding: auto, row_wise, ...
  DenseGradientPlan dense_gradient;
  BalancePlan balance;
  std::string compute = "auto";  // auto: bf16 on GPUs, fp32 on CPUs
  bool operator==(const PlanRequest&) const = default;
};

}  // namespace tautline
