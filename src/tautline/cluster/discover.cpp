#include "tautline/cluster/discover.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sched.h>
#include <sstream>

#include "tautline/base/error.h"
#include "tautline/cluster/cluster_fields.h"
#include "tautline/cluster/nvidia.h"
#include "tautline/cluster/peak.h"

namespace tautline {
namespace {

// "quota period" of /sys/fs/cgroup/cpu.max; 0: no limit.
double group_cores() {
  std::ifstream in("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(in >> quota >> period) || quota == "max" || period <= 0) return 0;
  return std::stod(quota) / period;
}

std::string value_of(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const size_t start = line.find_first_not_of(" \t:", key.size());
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

Device cpu_device() {
  Device device;
  device.kind = Device::Kind::kCpu;
  device.name = value_of("/proc/cpuinfo", "model name");
  if (device.name.empty()) device.name = "CPU";
  device.memory_bytes = usable_memory();
  device.multiprocessors = usable_cores();
  return device;
}

// How many devices the variable leaves visible: entries up to the first that is no device.
int visible_count(const std::string& variable, int present) {
  if (variable.empty()) return present;
  std::istringstream in(variable);
  int count = 0;
  for (std::string entry; std::getline(in, entry, ',') && entry != "-1" && !entry.empty();) ++count;
  return std::min(count, present);
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = 1;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
  const double quota = group_cores();
  if (quota > 0) cores = std::min(cores, static_cast<int>(std::ceil(quota)));
  return std::max(1, cores);
}

double usable_memory() {
  double bytes = 0;
  std::istringstream total(value_of("/proc/meminfo", "MemTotal"));
  if (total >> bytes) bytes *= 1024;
  std::ifstream in("/sys/fs/cgroup/memory.max");
  double limit = 0;
  if (in >> limit && limit > 0 && (bytes == 0 || limit < bytes)) bytes = limit;
  return bytes;
}

Cluster discover(const DiscoverOptions& options) {
  Cluster cluster;
  cluster.nodes = std::max(1, options.nodes);
  NvidiaDevices found;
  if (options.device != "cpu") found = nvidia_devices();
  const int gpus = visible_count(options.cuda_visible_devices, found.count);
  if (options.device == "cuda" && gpus == 0)
    throw user_error("device is cuda, but ",
                     found.count > 0 ? "CUDA_VISIBLE_DEVICES hides every GPU of this machine"
                                     : "this machine has no NVIDIA GPU (no driver answers)",
                     "; use device: cpu, or auto");
  if (gpus > 0) {
    cluster.device = found.device;
    cluster.device.peak_flops = peak_of(found.device.name);
    cluster.devices_per_node = gpus;
    cluster.name = "discovered-" + std::to_string(gpus) + "-gpu";
  } else {
    cluster.device = cpu_device();
    cluster.name = "discovered-" + std::to_string(cluster.device.multiprocessors) + "-core";
  }
  return cluster;
}

Cluster load_cluster(const std::string& discover_or_path, const DiscoverOptions& options) {
  if (discover_or_path == "discover") return discover(options);
  auto cluster = read_config<Cluster>(discover_or_path);
  Device& device = cluster.device;
  if (device.peak_flops == FlopRates{}) device.peak_flops = peak_of(device.name);
  return cluster;
}

}  // namespace tautline
