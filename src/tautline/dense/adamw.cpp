#include "tautline/dense/adamw.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <optional>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "tautline/base/error.h"
#include "tautline/kernels/adamw.h"
#include "tautline/ops/support.h"

namespace tautline::dense {

double learning_rate_factor(const AdamWOptions& options, int64_t step) {
  double factor = 1;
  if (options.warmup > 0) {
    factor = std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(options.warmup));
  }
  const double span = static_cast<double>(options.last_step - options.warmup);
  if (options.decay == "none" || span <= 0 || step < options.warmup) return factor;
  const double passed = std::min(1.0, static_cast<double>(step - options.warmup) / span);
  if (options.decay == "linear") return factor * (1 - passed);
  return factor * 0.5 * (1 + std::cos(std::numbers::pi * passed));
}

namespace {

/// [runs x sizeof(AdamWRun)] bytes on the parameters' device.
at::Tensor device_runs(const Parameters& parameters, double weight_decay) {
  std::vector<kernels::AdamWRun> runs;
  for (const Parameter& p : parameters.all())
    for (int64_t at = p.begin; at < p.end; at += kernels::kAdamWRun)
      runs.push_back({at, static_cast<int32_t>(std::min<int64_t>(kernels::kAdamWRun, p.end - at)),
                      p.decay ? static_cast<float>(weight_decay) : 0.0f});
  const auto bytes = static_cast<int64_t>(runs.size() * sizeof(kernels::AdamWRun));
  at::Tensor host = at::empty({bytes}, at::kByte);
  if (bytes > 0) std::memcpy(host.mutable_data_ptr(), runs.data(), static_cast<size_t>(bytes));
  return host.to(parameters.values().device());
}

}  // namespace

AdamW::AdamW(Parameters& parameters, const AdamWOptions& options)
    : parameters_(parameters), options_(options) {
  if (options.decay != "none" && options.decay != "linear" && options.decay != "cosine") {
    throw user_error("dense_optimizer.decay: '", options.decay,
                     "' is not one of none, linear, cosine");
  }
  first_ = at::zeros_like(parameters.values());
  second_ = at::zeros_like(parameters.values());
  if (ops::kCudaBuild && parameters.values().is_cuda()) {
    runs_ = device_runs(parameters, options.weight_decay);
    return;
  }
  step_ = at::zeros({}, parameters.values().options());
  for (const bool decay : {true, false}) {
    Group group{decay ? options.weight_decay : 0.0, {}, {}, {}, {}, {}};
    for (const Parameter& parameter : parameters.all()) {
      if (parameter.decay != decay || parameter.begin == parameter.end) continue;
      const int64_t length = parameter.end - parameter.begin;
      group.values.push_back(parameters.values().narrow(0, parameter.begin, length));
      group.gradients.push_back(parameters.gradients().narrow(0, parameter.begin, length));
      group.first.push_back(first_.narrow(0, parameter.begin, length));
      group.second.push_back(second_.narrow(0, parameter.begin, length));
      group.steps.push_back(step_);
    }
    if (!group.values.empty()) groups_.push_back(std::move(group));
  }
}

void AdamW::step(int64_t step) {
  const at::NoGradGuard no_grad;
  std::optional<at::Tensor> scale;  // the fused kernel divides the gradients by it
  if (options_.clip > 0) {
    norm_ = at::linalg_vector_norm(parameters_.gradients());
    scale = norm_.div(options_.clip).clamp_min(1.0);
  }
  const double lr = options_.lr * learning_rate_factor(options_, step);
  if (runs_.defined()) return step_cuda(step, lr, scale);
  step_.fill_(static_cast<double>(step + 1));
  for (const Group& group : groups_) {
    at::_fused_adamw_(group.values, group.gradients, group.first, group.second, {}, group.steps, lr,
                      options_.beta1, options_.beta2, group.weight_decay, options_.eps,
                      /*amsgrad=*/false, /*maximize=*/false, scale, std::nullopt);
  }
}

void AdamW::step_cuda(int64_t step, double lr, const std::optional<at::Tensor>& divisor) {
  kernels::AdamW p;
  p.value = parameters_.values().mutable_data_ptr<float>();
  p.gradient = parameters_.gradients().const_data_ptr<float>();
  p.first = first_.mutable_data_ptr<float>();
  p.second = second_.mutable_data_ptr<float>();
  p.runs = static_cast<const kernels::AdamWRun*>(runs_.const_data_ptr());
  p.run_count = runs_.numel() / static_cast<int64_t>(sizeof(kernels::AdamWRun));
  p.divisor = divisor ? divisor->const_data_ptr<float>() : nullptr;
  p.rate = lr;
  p.beta1 = options_.beta1;
  p.beta2 = options_.beta2;
  p.eps = options_.eps;
  p.step = step + 1;
  p.stream = ops::stream_of(first_);
  if constexpr (ops::kCudaBuild) kernels::adamw_cuda(p);
}

}  // namespace tautline::dense
