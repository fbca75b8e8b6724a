// AdamW over all dense parameters (Loshchilov, Hutter, "Decoupled weight decay regularization",
// ICLR 2019, algorithm 2), with a warm-up, a decay of the learning rate and clipping by the global
// norm.
//
// Precision: FP32 values, gradients and moments. One fused pass over value, gradient and both
// moments (PyTorch's on the CPU, kernels/adamw.h on CUDA); clipping scales inside that pass, so nothing
// waits for the host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tautline/dense/parameters.h"

namespace tautline::dense {

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.98;
  double eps = 1e-8;
  double weight_decay = 0.0;   // of parameters whose specification says so
  double clip = 0.0;           // greatest norm over all dense gradients; 0: off
  int64_t warmup = 0;          // steps
  std::string decay = "none";  // none, linear, cosine: to zero at `last_step`
  int64_t last_step = 0;
};

/// The learning rate's factor at `step` (from 0): min(1, (step + 1) / warmup), times the decay.
double learning_rate_factor(const AdamWOptions& options, int64_t step);

class AdamW {
 public:
  AdamW(Parameters& parameters, const AdamWOptions& options);

  /// One update with Parameters::gradients(), at global step `step` (from 0).
  void step(int64_t step);

  /// Norm of all gradients before clipping at the last step: a device scalar, undefined where
  /// clipping is off.
  const at::Tensor& gradient_norm() const { return norm_; }

  /// First and second moment, [count] FP32 each; a checkpoint reads and writes them in place. The
  /// number of updates is the global step, which the bias correction is computed from.
  const at::Tensor& first_moment() const { return first_; }
  const at::Tensor& second_moment() const { return second_; }

 private:
  struct Group {  // parameters that share a weight decay
    double weight_decay = 0;
    std::vector<at::Tensor> values, gradients, first, second, steps;
  };

  void step_cuda(int64_t step, double lr, const std::optional<at::Tensor>& divisor);

  Parameters& parameters_;
  AdamWOptions options_;
  at::Tensor first_, second_, step_, norm_;
  at::Tensor runs_;  // of kernels::AdamW; undefined on the CPU
  std::vector<Group> groups_;
};

}  // namespace tautline::dense
