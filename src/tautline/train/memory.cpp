#include "tautline/train/memory.h"

#include <c10/util/Exception.h>

#include "tautline/base/error.h"
#include "tautline/base/system_error.h"
#include "tautline/base/units.h"
#include "tautline/planner/planner.h"

namespace tautline::train {
namespace {

constexpr double kBytesPerDenseParameter = 4 * 4.0;  // weight, gradient, two moments, all FP32

}  // namespace

void check_dense_memory(const Job& job, int ranks) {
  const double room = planner::rates_for(job.cluster, ranks).memory_bytes_per_rank;
  const double needed = kBytesPerDenseParameter * job.workload.dense_parameters;
  if (!(room > 0) || needed <= room) return;
  throw user_error(
      "the model '", job.model.name, "' has ", rounded_count(job.workload.dense_parameters),
      " dense parameters, which with gradients and optimiser take ",
      rounded_quantity(needed, Unit::kBytes), " on every rank; a rank has ",
      rounded_quantity(room, Unit::kBytes), ": lower backbone.layers or a width of the model");
}

std::optional<std::string> machine_sentence(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  if (torch == nullptr) return tautline::machine_sentence(error);
  std::string text = torch->what_without_backtrace();
  text = text.substr(0, text.find('\n'));
  const size_t host = text.find("DefaultCPUAllocator");
  const bool device = dynamic_cast<const c10::OutOfMemoryError*>(torch) != nullptr;
  if (host == std::string::npos && !device) return std::nullopt;
  if (host != std::string::npos) text.erase(0, host);
  return "out of memory: " + text + " (a smaller batch or model would need less)";
}

}  // namespace tautline::train
