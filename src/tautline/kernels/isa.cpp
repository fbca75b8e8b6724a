#include "tautline/kernels/isa.h"

#include "tautline/base/error.h"

namespace tautline::kernels {
namespace {
bool detect() {
  if (!__builtin_cpu_supports("x86-64-v3"))
    throw user_error("this processor has no AVX2 and FMA (x86-64-v3), which the CPU kernels need");
  return __builtin_cpu_supports("x86-64-v4");
}
}  // namespace

bool has_v4() {
  static const bool v4 = detect();
  return v4;
}

}  // namespace tautline::kernels
