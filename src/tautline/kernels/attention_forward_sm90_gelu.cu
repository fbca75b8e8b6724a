#include "tautline/kernels/attention_forward_launch_sm90.cuh"

namespace tautline::kernels::sm90 {

void forward_gelu(const Forward& f) { forward_with<Pointwise<ScoreActivation::kGelu, false>>(f); }

}  // namespace tautline::kernels::sm90
