#include "tautline/cluster/cluster.h"

#include "tautline/cluster/cluster_fields.h"

namespace tautline {

void validate(const Cluster& cluster, const Provenance& at) {
  if (cluster.nodes < 1)
    throw user_error(at("nodes"), "nodes must be 1 or more, found ", cluster.nodes);
  if (cluster.devices_per_node < 1)
    throw user_error(at("devices_per_node"), "devices_per_node must be 1 or more, found ",
                     cluster.devices_per_node);
  const Device& device = cluster.device;
  if (device.memory_bytes < 0 || device.copy_bytes_per_second < 0 ||
      device.gemm_bf16_flop_per_second < 0 || device.multiprocessors < 0)
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
}

}  // namespace tautline
