#include "tautline/kernels/attention_sm90/forward_launch.cuh"

namespace tautline::kernels::sm90 {

void forward_softmax(const Forward& f) { forward_with<Softmax>(f); }

}  // namespace tautline::kernels::sm90
