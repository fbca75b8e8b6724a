#include "tautline/cluster/cluster.h"

#include <algorithm>

#include "tautline/base/limits.h"
#include "tautline/base/nearest.h"
#include "tautline/cluster/cluster_fields.h"

namespace tautline {
namespace {

void validate(const MeasuredCollective& collective, const Cluster& cluster, const std::string& path,
              const Provenance& at) {
  std::vector<std::string> tiers;
  for (const Tier& tier : cluster.tiers) tiers.push_back(tier.name);
  if (std::find(tiers.begin(), tiers.end(), collective.tier) == tiers.end())
    throw user_error(at(path + ".tier"), "the cluster has no tier '", collective.tier, "'",
                     suggestion(collective.tier, tiers));
  if (collective.ranks < 2)
    throw user_error(at(path + ".ranks"), "ranks of a collective must be 2 or more, found ",
                     collective.ranks);
  for (const auto& point : collective.points)
    if (!(point.bytes > 0) || !(point.seconds > 0))
      throw user_error(at(path + ".points"), "a measured size or time must be more than 0");
  if (!(collective.residual >= 0))
    throw user_error(at(path + ".residual"), "a residual must be 0 or more");
}

}  // namespace

void validate(const Cluster& cluster, const Provenance& at) {
  if (cluster.nodes < 1)
    throw user_error(at("nodes"), "nodes must be 1 or more, found ", cluster.nodes);
  if (cluster.devices_per_node < 1)
    throw user_error(at("devices_per_node"), "devices_per_node must be 1 or more, found ",
                     cluster.devices_per_node);
  check_at_most(at, "nodes", cluster.nodes, 1'000'000);
  check_at_most(at, "devices_per_node", cluster.devices_per_node, 1'000'000);
  const Device& device = cluster.device;
  if (device.memory_bytes < 0 || device.copy_bytes_per_second < 0 || device.multiprocessors < 0 ||
      device.gemm.bf16 < 0 || device.gemm.fp8 < 0 || device.peak_flops.bf16 < 0 ||
      device.peak_flops.fp8 < 0)
    throw user_error(at("device"), "sizes and rates of a device must be 0 (not known) or more");
  for (size_t i = 0; i < cluster.tiers.size(); ++i) {
    const Tier& tier = cluster.tiers[i];
    const std::string path = "tiers." + std::to_string(i);
    if (tier.bandwidth_bytes_per_second < 0 || tier.latency_seconds < 0)
      throw user_error(at(path), "bandwidth and latency of the tier '", tier.name,
                       "' must be 0 (not measured) or more");
    if (!(tier.oversubscription >= 1))
      throw user_error(at(path + ".oversubscription"), "oversubscription of the tier '", tier.name,
                       "' must be 1 (none) or more, found ", tier.oversubscription);
  }
  if (!cluster.calibration) return;
  const auto& collectives = cluster.calibration->collectives;
  for (size_t i = 0; i < collectives.size(); ++i)
    validate(collectives[i], cluster, "calibration.collectives." + std::to_string(i), at);
}

}  // namespace tautline
