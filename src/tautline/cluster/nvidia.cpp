#include "tautline/cluster/nvidia.h"

#include <dlfcn.h>
#include <filesystem>
#include <fstream>

namespace tautline {
namespace {

// The few entries of NVML that are needed, declared as its reference manual gives them.
using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total, free, used;
};
constexpr int kNvmlSuccess = 0;

// The library, opened and initialised for as long as this lives.
class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    const auto init = entry<int (*)()>("nvmlInit_v2");
    ready_ = init && init() == kNvmlSuccess;
  }
  ~Nvml() {
    const auto shutdown = entry<int (*)()>("nvmlShutdown");
    if (ready_ && shutdown) shutdown();
    if (library_) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  /// Calls an entry; false where it is missing or fails.
  template <class... Arguments>
  bool call(const char* name, Arguments... arguments) const {
    const auto function = entry<int (*)(Arguments...)>(name);
    return ready_ && function && function(arguments...) == kNvmlSuccess;
  }

 private:
  template <class Function>
  Function entry(const char* name) const {
    return library_ ? reinterpret_cast<Function>(dlsym(library_, name)) : nullptr;
  }
  void* library_;
  bool ready_ = false;
};

// FP32 lanes of a multiprocessor by compute capability (CUDA programming guide, table of
// arithmetic throughput): 64 in 6.0, 7.x and 8.0, else 128.
unsigned lanes(int major, int minor) {
  return major == 7 || (major == 8 && minor == 0) || (major == 6 && minor == 0) ? 64 : 128;
}

NvidiaDevices from_nvml() {
  const Nvml nvml;
  NvidiaDevices out;
  unsigned count = 0;
  NvmlDevice device = nullptr;
  if (!nvml.call("nvmlDeviceGetCount_v2", &count) || count == 0) return out;
  if (!nvml.call("nvmlDeviceGetHandleByIndex_v2", 0u, &device)) return out;
  out.count = static_cast<int>(count);
  out.device.kind = Device::Kind::kCuda;
  char name[96] = "";
  if (nvml.call("nvmlDeviceGetName", device, static_cast<char*>(name), 96u)) out.device.name = name;
  NvmlMemory memory{};
  if (nvml.call("nvmlDeviceGetMemoryInfo", device, &memory))
    out.device.memory_bytes = static_cast<double>(memory.total);
  unsigned cores = 0;
  int major = 0, minor = 0;
  if (nvml.call("nvmlDeviceGetNumGpuCores", device, &cores) &&
      nvml.call("nvmlDeviceGetCudaComputeCapability", device, &major, &minor))
    out.device.multiprocessors = static_cast<int>(cores / lanes(major, minor));
  return out;
}

// Containers may have the driver's files but not its library: count and name only.
NvidiaDevices from_proc() {
  NvidiaDevices out;
  std::error_code error;
  for (const auto& gpu : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    ++out.count;
    out.device.kind = Device::Kind::kCuda;
    std::ifstream in(gpu.path() / "information");
    for (std::string line; out.device.name.empty() && std::getline(in, line);)
      if (line.starts_with("Model:"))
        out.device.name = line.substr(line.find_first_not_of(" \t", 6));
  }
  return out;
}

}  // namespace

NvidiaDevices nvidia_devices() {
  NvidiaDevices out = from_nvml();
  return out.count > 0 ? out : from_proc();
}

}  // namespace tautline
