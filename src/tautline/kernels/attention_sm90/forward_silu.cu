#include "tautline/kernels/attention_sm90/forward_launch.cuh"

namespace tautline::kernels::sm90 {

void forward_silu(const Forward& f) { forward_with<Pointwise<ScoreActivation::kSilu, false>>(f); }

}  // namespace tautline::kernels::sm90
