// The YAML of a Cluster.
#pragma once

#include <array>
#include <utility>

#include "tautline/base/config.h"
#include "tautline/cluster/cluster.h"

namespace tautline {

constexpr auto choices(Device::Kind*) {
  return std::array{std::pair{Device::Kind::kCpu, "cpu"}, std::pair{Device::Kind::kCuda, "cuda"}};
}

template <class V>
void fields(V& v, Device& x) {
  v("kind", x.kind, "cpu or cuda");
  v("name", x.name, "the product's name");
  v.bytes("memory", x.memory_bytes, "of one device; 0: not known");
  v.rate("copy", x.copy_bytes_per_second, "measured read + write of its memory; 0: not measured");
  v.section("gemm", "measured rate of large matrix products", [&](auto& gemm) {
    gemm.flop_rate("bf16", x.gemm_bf16_flop_per_second, "0: not measured");
  });
  v("multiprocessors", x.multiprocessors, "SMs of a GPU, cores of a CPU");
}

template <class V>
void fields(V& v, Tier& x) {
  v("name", x.name, "what reports call this level of the network");
  v.one_of("spans", x.spans, {"node", "leaf", "cluster"}, "what it connects");
  v.rate("bandwidth", x.bandwidth_bytes_per_second, "of one device; 0: not measured");
  v.seconds("latency", x.latency_seconds, "of a small message; 0: not measured");
  v("oversubscription", x.oversubscription, "bandwidth below over bandwidth above; 1: none");
}

template <class V>
void fields(V& v, Cluster& x) {
  v("name", x.name, "what plans and reports call the cluster");
  v("nodes", x.nodes, "machines");
  v("devices_per_node", x.devices_per_node, "GPUs of a machine; on CPUs, the ranks it is to run");
  v("device", x.device, "one of the equal devices");
  v("tiers", x.tiers, "levels of the network, innermost first");
}

/// Errors: no node, no device, a negative rate.
void validate(const Cluster& cluster, const Provenance& at = {});

}  // namespace tautline
