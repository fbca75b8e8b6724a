#include "tautline/kernels/softmax_loss_sm90/launch.cuh"

namespace tautline::kernels::softmax_sm90 {

void passes_fp16_d128(const SoftmaxLossSm90& p) {
  rows_pass<Float16, 128>(p);
  if (p.d_items) items_pass<Float16, 128>(p);
}

}  // namespace tautline::kernels::softmax_sm90
