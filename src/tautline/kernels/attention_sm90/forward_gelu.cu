#include "tautline/kernels/attention_sm90/forward_launch.cuh"

namespace tautline::kernels::sm90 {

void forward_gelu(const Forward& f) { forward_with<Pointwise<ScoreActivation::kGelu, false>>(f); }

}  // namespace tautline::kernels::sm90
