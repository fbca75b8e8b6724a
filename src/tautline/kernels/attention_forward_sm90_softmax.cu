#include "tautline/kernels/attention_forward_launch_sm90.cuh"

namespace tautline::kernels::sm90 {

void forward_softmax(const Forward& f) {
  if (f.p.element == Element::kFloat16) return forward_half<Softmax<false>>(f);
  forward_bfloat16<Softmax<true>>(f);
}

}  // namespace tautline::kernels::sm90
