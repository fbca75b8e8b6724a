// Which instruction set the fast CPU kernels use. NAME_cpu.cpp is compiled twice, into namespace v3
// (AVX2, FMA, F16C) and v4 (AVX-512); the header declares both and picks one when the program runs:
//
//   TAUTLINE_ISA_KERNEL(void scale_cpu(const Scale& params, int64_t begin, int64_t end),
//                       scale_cpu(params, begin, end))
//
// A NAME_cpu.cpp must not use inline functions or templates that other files also instantiate
// (std::vector, std::sort): the linker keeps one copy, perhaps the AVX-512 one, for the whole
// program. Plain loops, <cmath> and always_inline helpers are safe.
#pragma once

namespace tautline::kernels {

/// True where the AVX-512 kernels can run. A machine without even AVX2 is the user's error, raised
/// on the first call.
bool has_v4();

}  // namespace tautline::kernels

// Declares `signature` in namespaces v3 and v4 of the enclosing namespace, and defines the inline
// function of that signature which makes `call` in the better of the two.
#define TAUTLINE_ISA_KERNEL(signature, call)            \
  namespace v3 {                                        \
  signature;                                            \
  }                                                     \
  namespace v4 {                                        \
  signature;                                            \
  }                                                     \
  inline signature {                                    \
    if (::tautline::kernels::has_v4()) return v4::call; \
    return v3::call;                                    \
  }
