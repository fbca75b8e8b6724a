#include "tautline/cluster/peak.h"

namespace tautline {
namespace {

struct Card {
  const char* name;
  FlopRates peak;
};

constexpr Card kCards[] = {
    // NVIDIA, "H200 Tensor Core GPU", data sheet: SXM, 1,979 and 3,958 TFLOPS with sparsity.
    {"NVIDIA H200", {989e12, 1979e12}},
    // NVIDIA, "H100 Tensor Core GPU", data sheet: SXM, the same.
    {"NVIDIA H100 80GB HBM3", {989e12, 1979e12}},
    // NVIDIA, "A100 Tensor Core GPU", data sheet: 312 TFLOPS; no fp8.
    {"NVIDIA A100-SXM4-80GB", {312e12, 0}},
    {"NVIDIA A100-SXM4-40GB", {312e12, 0}},
};

}  // namespace

FlopRates peak_of(const std::string& name) {
  for (const Card& card : kCards)
    if (name == card.name) return card.peak;
  return {};
}

}  // namespace tautline
