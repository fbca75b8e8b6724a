// Bytes that one rank sends in a collective over W ranks, as formulas. n counts the bytes of a
// rank's own input. For the reductions they are those of a bandwidth-optimal algorithm (ring or
// halving-doubling: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009).
#pragma once

#include <cstdint>
#include <vector>

namespace tautline::comm {

inline double all_to_all_bytes(const std::vector<int64_t>& splits, int rank, double row_bytes) {
  double rows = 0;
  for (size_t peer = 0; peer < splits.size(); ++peer)
    if (static_cast<int>(peer) != rank) rows += static_cast<double>(splits[peer]);
  return rows * row_bytes;
}
inline double all_reduce_bytes(double n, int world) { return 2.0 * (world - 1) / world * n; }
inline double all_gather_bytes(double n, int world) { return (world - 1) * n; }
inline double reduce_scatter_bytes(double n, int world) { return (world - 1.0) / world * n; }
inline double broadcast_bytes(double n, bool root, int world) {
  return root && world > 1 ? n : 0.0;
}

}  // namespace tautline::comm
