// The noun Cluster: what we have. Written by hand, found by discovery, or measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tautline {

struct Device {
  enum class Kind { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  std::string name;
  double memory_bytes = 0;
  double copy_bytes_per_second = 0;  // measured read + write; 0: not measured
  double gemm_bf16_flop_per_second = 0;
  int multiprocessors = 0;
  bool operator==(const Device&) const = default;
};

/// A level of the network, innermost first.
struct Tier {
  std::string name;
  std::string spans = "node";             // node, leaf, cluster
  double bandwidth_bytes_per_second = 0;  // of one device
  double latency_seconds = 0;
  double oversubscription = 1;
  bool operator==(const Tier&) const = default;
};

struct Cluster {
  std::string name;
  int nodes = 1;
  int devices_per_node = 1;
  Device device;
  std::vector<Tier> tiers;
  bool operator==(const Cluster&) const = default;
};

}  // namespace tautline
