#include "tautline/kernels/softmax_loss_sm90/launch.cuh"

namespace tautline::kernels::softmax_sm90 {

void passes_bf16_d64(const SoftmaxLossSm90& p) {
  rows_pass<BFloat16, 64>(p);
  if (p.d_items) items_pass<BFloat16, 64>(p);
}

}  // namespace tautline::kernels::softmax_sm90
