#include "tautline/kernels/attention_forward_launch_sm90.cuh"

namespace tautline::kernels::sm90 {

void forward_gelu_tanh_fast(const Forward& f) {
  forward_with<Pointwise<ScoreActivation::kGeluTanh, true>>(f);
}

}  // namespace tautline::kernels::sm90
