// Peak rates of devices by their data sheets: dense matrix products, without sparsity (a data sheet's
// figure "with sparsity" is twice as much).
//
// Only cards that report a name of their own: a product line has cards with other clocks (NVL, PCIe)
// under names that differ, and one that is not listed has no peak here rather than a wrong one.
#pragma once

#include <string>

#include "tautline/cluster/cluster.h"

namespace tautline {

/// `name` as NVML gives it ("NVIDIA H200"); zeros for a card that is not listed.
FlopRates peak_of(const std::string& name);

}  // namespace tautline
