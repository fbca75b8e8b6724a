// What this machine has, as a Cluster: `cluster: discover` in a run.
//
// GPUs are asked for through NVIDIA's management library, opened when the program runs (it comes
// with the driver, so nothing is linked), or failing that through /proc/driver/nvidia. Measured rates
// are left at 0: discovery looks, it does not measure. Peaks are the data sheet's (peak.h).
#pragma once

#include <string>

#include "tautline/cluster/cluster.h"

namespace tautline {

struct DiscoverOptions {
  std::string device = "auto";            // auto: GPUs where there are any; cpu, cuda
  std::string cuda_visible_devices = "";  // that variable's value; empty: not set
  int nodes = 1;
};

/// On CPUs a Cluster's device is the whole machine: its ranks share the memory and the cores.
/// Errors: `cuda` where there is no NVIDIA GPU.
Cluster discover(const DiscoverOptions& options = {});

/// `cluster:` of a run: "discover", or the path of a Cluster's YAML (read_config's errors), which gets
/// the peaks of a known card where it gives none.
Cluster load_cluster(const std::string& discover_or_path, const DiscoverOptions& options = {});

/// Cores that this process may use (affinity, and the control group's quota).
int usable_cores();

/// Memory that this process may use, bytes (the machine's, or the control group's limit).
double usable_memory();

}  // namespace tautline
