// One partition of the spill becomes one Parquet file of the built log.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tautline/data/build/spill.h"
#include "tautline/data/build/statistics.h"
#include "tautline/data/uri.h"

namespace tautline::data {

struct ShardSchema {
  std::vector<std::string> ids = {"item"};  // item, then categorical columns
  std::vector<std::string> dense;
  int64_t ticks_per_second = 1;
  int64_t common_ticks = 0;  // how many events have this time is counted
};

/// final_ids[column][provisional id] = vocabulary id; absent (0 in the spill) stays 0.
using FinalIds = std::vector<std::vector<int64_t>>;

/// Sorts the partition by user (first appearance) and time (ties: the file's order) and writes it.
ShardSummary write_shard(const Partition& partition, const ShardSchema& schema,
                         const FinalIds& final_ids, const Location& file);

/// One row of a shard.
struct UserView {
  std::string_view token;
  std::span<const int64_t> items, times;
};
/// Visits the rows of a written shard, a row group at a time.
void for_each_user(const Location& file, const std::function<void(const UserView&)>& visit);

}  // namespace tautline::data
