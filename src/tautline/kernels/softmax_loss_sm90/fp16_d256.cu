#include "tautline/kernels/softmax_loss_sm90/launch.cuh"

namespace tautline::kernels::softmax_sm90 {

void passes_fp16_d256(const SoftmaxLossSm90& p) {
  rows_pass<Float16, 256>(p);
  if (p.d_items) items_pass<Float16, 256>(p);
}

}  // namespace tautline::kernels::softmax_sm90
