#include "tautline/kernels/attention_sm90/forward_launch.cuh"

namespace tautline::kernels::sm90 {

void forward_silu_fast(const Forward& f) {
  forward_with<Pointwise<ScoreActivation::kSilu, true>>(f);
}

}  // namespace tautline::kernels::sm90
