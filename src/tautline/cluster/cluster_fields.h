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
void fields(V& v, FlopRates& x) {
  v.flop_rate("bf16", x.bf16, "of dense products; 0: not known");
  v.flop_rate("fp8", x.fp8, "of dense products; 0: not known, or the device has none");
}

template <class V>
void fields(V& v, Device& x) {
  v("kind", x.kind, "cpu or cuda");
  v("name", x.name, "the product's name");
  v.bytes("memory", x.memory_bytes, "of one device; 0: not known");
  v("peak_flops", x.peak_flops,
    "by the data sheet, without sparsity: MFU's 100 %; absent: as known by the name, else no MFU");
  v.rate("copy", x.copy_bytes_per_second, "measured read + write of its memory; 0: not measured");
  v("gemm", x.gemm, "measured rates of large matrix products");
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
void fields(V& v, MeasuredCollective::Point& x) {
  v.bytes("size", x.bytes, "of each rank's input");
  v.seconds("time", x.seconds, "of the collective");
}

template <class V>
void fields(V& v, MeasuredCollective& x) {
  v.one_of("op", x.op, {"all_to_all", "all_reduce", "all_gather", "reduce_scatter", "broadcast"},
           "what was measured");
  v("tier", x.tier, "slowest level of the network that its ranks span");
  v("ranks", x.ranks, "that took part");
  v("points", x.points, "times by size");
  v("residual", x.residual, "root mean square of measured / fitted - 1");
}

template <class V>
void fields(V& v, Calibration& x) {
  v("date", x.date, "of the measurements, such as 2026-11-29");
  v("source", x.source, "the command, file or person that they come from");
  v("versions", x.versions, "of what they depend on: torch, nccl, driver");
  v("collectives", x.collectives, "measured times");
}

template <class V>
void fields(V& v, Cluster& x) {
  v("name", x.name, "what plans and reports call the cluster");
  v("nodes", x.nodes, "machines");
  v("devices_per_node", x.devices_per_node, "GPUs of a machine; on CPUs, the ranks it is to run");
  v("device", x.device, "one of the equal devices");
  v("tiers", x.tiers, "levels of the network, innermost first");
  v("calibration", x.calibration, "where the measured rates come from");
}

/// Errors: no node, no device, a negative rate, a measurement of a tier that is not there.
void validate(const Cluster& cluster, const Provenance& at = {});

}  // namespace tautline
