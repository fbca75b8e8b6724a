// The noun Cluster: what we have. Written by hand, found by discovery, or measured.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tautline {

/// FLOP/s of dense matrix products by the precision of their factors; 0: not known.
struct FlopRates {
  double bf16 = 0, fp8 = 0;
  bool operator==(const FlopRates&) const = default;
};

struct Device {
  enum class Kind { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  std::string name;
  double memory_bytes = 0;
  FlopRates peak_flops;              // by the data sheet, without sparsity: MFU is a share of it
  double copy_bytes_per_second = 0;  // measured read + write; 0: not measured
  FlopRates gemm;                    // measured on large products
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

/// Times of one collective by size, measured; cost formulas are fitted to them.
struct MeasuredCollective {
  struct Point {
    double bytes = 0, seconds = 0;  // of each rank's input; of the collective
    bool operator==(const Point&) const = default;
  };
  std::string op, tier;
  int ranks = 2;
  std::vector<Point> points;
  double residual = 0;  // root mean square of measured / fitted - 1
  bool operator==(const MeasuredCollective&) const = default;
};

/// Where the measured rates of a Cluster come from.
struct Calibration {
  std::string date, source;
  std::map<std::string, std::string> versions;
  std::vector<MeasuredCollective> collectives;
  bool operator==(const Calibration&) const = default;
};

struct Cluster {
  std::string name;
  int nodes = 1;
  int devices_per_node = 1;
  Device device;
  std::vector<Tier> tiers;
  std::optional<Calibration> calibration;  // absent: nothing was measured here
  bool operator==(const Cluster&) const = default;
};

}  // namespace tautline
