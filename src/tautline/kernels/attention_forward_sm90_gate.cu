#include "tautline/kernels/attention_forward_launch_sm90.cuh"

namespace tautline::kernels::sm90 {

void forward_gate(const Forward& f) { forward_with<Gate>(f); }

}  // namespace tautline::kernels::sm90
