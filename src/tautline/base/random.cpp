#include "tautline/base/random.h"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace tautline {

double Random::normal() {
  const double u = 1.0 - uniform();  // in (0, 1]: the logarithm is finite
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * uniform());
}

std::vector<int64_t> permutation(int64_t n, Random random) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = n - 1; i > 0; --i)
    std::swap(order[static_cast<size_t>(i)], order[random.below(static_cast<uint64_t>(i) + 1)]);
  return order;
}

}  // namespace tautline
