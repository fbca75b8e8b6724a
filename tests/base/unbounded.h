// Which integers of a config have no upper bound: a new key that forgets its own shows up here.
#pragma once

#include <string>
#include <vector>

#include "tautline/base/config.h"

namespace tautline {

/// Paths of whole numbers in `x` that the config takes with the value 2^63 - 1, and with 2^31 - 1 where
/// they are of 32 bits.
template <class T>
std::vector<std::string> unbounded_integers(const T& x) {
  const std::string text = to_yaml(x);
  const auto takes = [&](const std::string& set) {
    try {
      parse_config<T>(text, "x.yaml", {set});
      return true;
    } catch (const UserError&) {
      return false;
    }
  };
  std::vector<std::string> paths;
  for (const ConfigLeaf& leaf : leaves_of(parse_yaml(text, "x.yaml"), {})) {
    if (!parse_integer(leaf.value)) continue;
    if (takes(leaf.path + "=9223372036854775807") || takes(leaf.path + "=2147483647"))
      paths.push_back(leaf.path);
  }
  return paths;
}

}  // namespace tautline
