#include "tautline/kernels/attention_forward_launch_sm90.cuh"

namespace tautline::kernels::sm90 {

void forward_softmax(const Forward& f) { forward_with<Softmax>(f); }

}  // namespace tautline::kernels::sm90
