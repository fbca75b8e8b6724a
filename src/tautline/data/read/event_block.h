// Decoded events: the rows of one row group that a reader keeps, column by column.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tautline::data {

/// Which per-event columns are decoded besides item and time. No name twice in one list.
struct EventColumns {
  std::vector<std::string> categorical, real;  // real: dense columns and labels
  /// Memory of one decoded event.
  int64_t bytes_per_event() const {
    return 16 + 8 * static_cast<int64_t>(categorical.size()) +
           4 * static_cast<int64_t>(real.size());
  }
};

/// R rows, E events of the kept ones. Rows that were not kept are empty.
struct EventBlock {
  std::vector<int64_t> offsets{0};                // [R + 1]
  std::vector<int64_t> item, time;                // [E]
  std::vector<std::vector<int64_t>> categorical;  // [EventColumns::categorical][E]
  std::vector<std::vector<float>> real;           // [EventColumns::real][E]
};

}  // namespace tautline::data
