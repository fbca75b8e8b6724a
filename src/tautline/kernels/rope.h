// Rotary position embedding (Su et al. 2021, section 3.2.2) on the q and k of a packed projection;
// v is copied, or left alone where the output has no place for it. Half-split convention: channel d < D/2 pairs with d + D/2, angle = position *
// base^(-2 d / D); (a, b) -> (a cos - b sin, b cos + a sin). The backward is the same with -angle.
//
// T tokens, H heads, D head dimension (even). Angles in FP32 as PyTorch's: float(position) * float
// frequency.
#pragma once

#include <cstdint>

#include "tautline/kernels/element.h"
#include "tautline/kernels/isa.h"

namespace tautline::kernels {

struct Rope {
  const void* in = nullptr;             // [T, 3, H, D]
  void* out = nullptr;                  // [T, 3, H, D], or without v [T, 2, H, D]; may be `in`
  int64_t in_token = 0, out_token = 0;  // elements from token to token
  bool with_v = true;
  const int64_t* position = nullptr;  // [T]
  int64_t tokens = 0, heads = 0, head_dim = 0;
  double base = 10000.0;
  bool backward = false;
  Element element = Element::kFloat32;
  void* stream = nullptr;
};

void rope_ref(const Rope& p);
/// Tokens [begin, end).
TAUTLINE_ISA_KERNEL(void rope_cpu(const Rope& p, int64_t begin, int64_t end),
                    rope_cpu(p, begin, end))
void rope_cuda(const Rope& p);

}  // namespace tautline::kernels
