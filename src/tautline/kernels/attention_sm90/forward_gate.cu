#include "tautline/kernels/attention_sm90/forward_launch.cuh"

namespace tautline::kernels::sm90 {

void forward_gate(const Forward& f) { forward_with<Gate>(f); }

}  // namespace tautline::kernels::sm90
