#include <algorithm>

#include "tautline/planner/planner.h"

namespace tautline::planner {
namespace {

// Where nothing was measured: a current GPU with NVLink, and processes on one machine's CPU.
constexpr Rates kAssumedGpu{100e9, 20e-6, 1.5e12, 0};
constexpr Rates kAssumedCpu{2e9, 30e-6, 10e9, 0};

constexpr double kValueBytes = 4;  // tables and gradients are FP32
constexpr double kIdBytes = 8;

}  // namespace

Rates rates_for(const Cluster& cluster, int devices) {
  const bool gpu = cluster.device.kind == Device::Kind::kCuda;
  Rates rates = gpu ? kAssumedGpu : kAssumedCpu;
  if (cluster.device.copy_bytes_per_second > 0)
    rates.copy_bytes_per_second = cluster.device.copy_bytes_per_second;
  // The slowest level that the ranks span decides: inside a node the first, else all of them.
  const bool one_node = devices <= cluster.devices_per_node || cluster.nodes == 1;
  double slowest = 0;
  for (const Tier& tier : cluster.tiers) {
    if (one_node && tier.spans != "node") continue;
    const double bandwidth = tier.bandwidth_bytes_per_second / tier.oversubscription;
    if (bandwidth > 0 && (slowest == 0 || bandwidth < slowest)) slowest = bandwidth;
    if (tier.latency_seconds > 0) rates.latency_seconds = tier.latency_seconds;
  }
  if (slowest > 0) rates.wire_bytes_per_second = slowest;
  // A CPU's ranks share the machine's memory.
  const int sharing = gpu ? 1 : (devices + cluster.nodes - 1) / cluster.nodes;
  rates.memory_bytes_per_rank = cluster.device.memory_bytes / sharing;
  return rates;
}

TableCost table_cost(Sharding sharding, const TableWork& table, const Rates& rates, int devices) {
  const double w = devices, ids = table.ids_per_step;
  const double row = kValueBytes * static_cast<double>(table.dim);
  const double resident = static_cast<double>(table.rows) * (row + table.state_bytes_per_row);
  const double away = (w - 1) / w;              // share of ids that other ranks hold
  const double exchanged = 2 * row + kIdBytes;  // bytes of one id's way out and back
  const double touched = 3 * row + 2 * table.state_bytes_per_row;  // read, read and written
  const double messages = (w - 1) * rates.latency_seconds;
  const auto seconds = [&](double wire, double memory, double exchanges) {
    return wire / rates.wire_bytes_per_second + memory / rates.copy_bytes_per_second +
           exchanges * messages;
  };
  switch (sharding) {
    case Sharding::kRowWise: {
      const double each = seconds(ids / w * away * exchanged, ids / w * touched, 4);
      return {each, each, resident / w, resident / w};
    }
    case Sharding::kTableWise: {
      // The owner talks to all, the others to the owner alone.
      const double other =
          ids / w * exchanged / rates.wire_bytes_per_second + 4 * rates.latency_seconds;
      return {seconds(ids * away * exchanged, ids * touched, 4), w > 1 ? other : 0, resident, 0};
    }
    case Sharding::kDataParallel: {
      const double each =
          seconds((w - 1) * ids / w * (row + kIdBytes), ids / w * row + ids * (touched - row), 2);
      return {each, each, resident, resident};
    }
  }
  return {};
}

}  // namespace tautline::planner
