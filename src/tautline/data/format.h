// A built log on disk: what `tautline data build` writes and the reader reads.
//
//   OUT/workload.yaml              LogStatistics (workload/workload.h), last of all files: its
//   presence says
//                                  that the log is whole
//   OUT/part-00000.parquet ...     one row a user, users in no particular order, about
//   kUsersPerRowGroup
//                                  rows a row group
//   OUT/vocabulary/NAME.parquet    id int64 (1..size, in order), token utf8, count int64; by
//   descending
//                                  count, ties by first appearance
//
// Columns of a part (lists of one row have equal length, events in order of time, ties in file
// order):
//   user      utf8            the user's token
//   length    int32           events
//   item      list<int64>     vocabulary ids, >= 1
//   time      list<int64>     seconds since 1970
//   NAME      list<int64>     further categorical columns (vocabulary ids; 0 = absent)
//   NAME      list<float>     further dense columns and labels (NaN refused at build)
#pragma once

#include <cstdint>

namespace tautline::data {

inline constexpr int64_t kFormatVersion = 1;
inline constexpr int64_t kUsersPerRowGroup = 4096;
inline constexpr int64_t kUnknownId = 0;  // never an event's item; every table has a row for it

}  // namespace tautline::data
