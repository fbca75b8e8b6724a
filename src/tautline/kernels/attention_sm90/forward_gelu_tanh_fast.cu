#include "tautline/kernels/attention_sm90/forward_launch.cuh"

namespace tautline::kernels::sm90 {

void forward_gelu_tanh_fast(const Forward& f) {
  if (f.p.element == Element::kFloat16)
    return forward_of<__half, Pointwise<ScoreActivation::kGeluTanh, true>>(f);
  forward_of<__nv_bfloat16, Pointwise<ScoreActivation::kGeluTanh, true, true>>(f);
}

}  // namespace tautline::kernels::sm90
