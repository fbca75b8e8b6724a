// Variants of the forward kernel that check_forward.cu was linked with.
#pragma once

#include <string>
#include <vector>

#include "tautline/kernels/attention_sm90/forward_launch.h"

struct Variant {
  std::string name;
  int dim;
  bool softmax;
  int activation;
  bool half;
  int tile, queries, keys;  // queries of an order's tile and of a pass, keys of a block
  void (*launch)(const tautline::kernels::sm90::Forward&);
};
inline std::vector<Variant>& variants() {
  static std::vector<Variant> all;
  return all;
}
struct Register {
  explicit Register(const Variant& v) { variants().push_back(v); }
};
