// AdamW over flat FP32 buffers, one pass: reads value, gradient and both moments, writes value and
// moments (28 bytes a number). The gradient is not written, as the fused kernel of PyTorch does where
// it scales: 32.
//
//   g' = g / divisor                        m <- beta1 m + (1 - beta1) g'
//   value <- value - rate decay value       v <- beta2 v + (1 - beta2) g'^2
//   value <- value - rate / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps)
//
// Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019, algorithm 2. FP32 but for
// the bias corrections, which are the host's doubles.
#pragma once

#include <cstdint>

namespace tautline::kernels {

/// Neighbouring numbers with one weight decay.
struct AdamWRun {
  int64_t begin = 0;
  int32_t count = 0;  // at most kAdamWRun
  float decay = 0;
};
inline constexpr int32_t kAdamWRun = 1 << 14;

struct AdamW {
  float* value = nullptr;           // like `gradient`, `first` and `second`: aligned to 16 bytes
  const float* gradient = nullptr;  // flat
  float *first = nullptr, *second = nullptr;
  const AdamWRun* runs = nullptr;  // disjoint
  int64_t run_count = 0;
  const float* divisor = nullptr;  // one number, or null: 1
  double rate = 0, beta1 = 0, beta2 = 0, eps = 0;
  int64_t step = 1;  // t, from 1
  void* stream = nullptr;
};

void adamw_ref(const AdamW& p);
/// All but `stream` and the numbers on the device.
void adamw_cuda(const AdamW& p);

}  // namespace tautline::kernels
