// dropout and dropout_add, with masks that no rank, thread or order changes.
#include "tautline/kernels/dropout.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tautline/base/error.h"
#include "tautline/ops/on_its_device.h"
#include "tautline/ops/ops.h"
#include "tautline/ops/support.h"

namespace tautline::ops {
namespace {

using Pair = std::tuple<Tensor, Tensor>;

void check(const Tensor& x, const OptionalTensor& bias, const OptionalTensor& residual, double p,
           const Tensor& sample, const Tensor& position) {
  if (!(p >= 0 && p < 1)) throw user_error("dropout: p = ", p, " is not in [0, 1)");
  if (x.dim() != 2) throw user_error("dropout: x ", x.sizes(), " is not [T, C]");
  if (sample.numel() != x.size(0) || position.numel() != x.size(0))
    throw user_error("dropout: ", sample.numel(), " samples and ", position.numel(),
                     " positions for ", x.size(0), " tokens");
  if (bias && (bias->dim() != 1 || bias->size(0) != x.size(1)))
    throw user_error("dropout: bias ", bias->sizes(), " does not fit x ", x.sizes());
  if (residual && (residual->sizes() != x.sizes() || residual->scalar_type() != x.scalar_type()))
    throw user_error("dropout: residual ", residual->sizes(), " is not like x ", x.sizes());
}

int64_t partials(const Tensor& x) {
  if constexpr (kCudaBuild) {
    if (x.is_cuda()) return kernels::dropout_partials_cuda(x.size(0), x.size(1));
  }
  return (x.size(0) + kernels::kDropoutBlockRows - 1) / kernels::kDropoutBlockRows;
}

void run(kernels::Dropout& p, const Tensor& x) {
  if (x.is_cpu()) {
    const int64_t blocks = (p.rows + kernels::kDropoutBlockRows - 1) / kernels::kDropoutBlockRows;
    parallel(blocks, 4 * p.width * kernels::kDropoutBlockRows,
             [&](int64_t i, int64_t j) { kernels::dropout_cpu(p, i, j); });
    if (p.d_bias) kernels::dropout_finish_cpu(p);
  } else if (x.numel() > 0) {
    if constexpr (kCudaBuild) kernels::dropout_cuda(p);
  }
}

/// (out, d_bias): residual + mask * (x + bias) / (1 - p); with `bias_gradient` the column sums of
/// the result too, which is the backward.
Pair dropout_mask(const Tensor& x, const OptionalTensor& bias, const OptionalTensor& residual,
                  double p, int64_t seed, int64_t step, int64_t site, const Tensor& sample,
                  const Tensor& position, bool bias_gradient) {
  check(x, bias, residual, p, sample, position);
  const Tensor in = readable(x), samples = int64_vector(sample, x, "sample");
  const Tensor positions = int64_vector(position, x, "position");
  const OptionalTensor b = bias ? OptionalTensor(float_vector(*bias)) : std::nullopt;
  const OptionalTensor r = residual ? OptionalTensor(readable(*residual)) : std::nullopt;
  Tensor out = at::empty(in.sizes(), in.options());
  Tensor d_bias = at::zeros({bias_gradient ? x.size(1) : 0}, float_like(x));
  kernels::Dropout params;
  params.partials = bias_gradient ? partials(x) : 0;
  Tensor workspace = at::empty({params.partials, x.size(1)}, float_like(x));
  params.x = in.const_data_ptr();
  params.residual = r ? r->const_data_ptr() : nullptr;
  params.bias = float_data(b);
  params.out = out.mutable_data_ptr();
  params.sample = samples.const_data_ptr<int64_t>();
  params.position = positions.const_data_ptr<int64_t>();
  params.d_bias = bias_gradient ? d_bias.mutable_data_ptr<float>() : nullptr;
  params.workspace = workspace.mutable_data_ptr<float>();
  params.key = kernels::dropout_key(static_cast<uint64_t>(seed), static_cast<uint64_t>(step),
                                    static_cast<uint32_t>(site));
  params.p = p;
  params.rows = x.size(0);
  params.width = x.size(1);
  params.element = element_of(in);
  params.stream = stream_of(x);
  run(params, x);
  return {out.to(x.scalar_type()), d_bias};
}

Pair mask_meta(const Tensor& x, const OptionalTensor&, const OptionalTensor&, double, int64_t,
               int64_t, int64_t, const Tensor&, const Tensor&, bool bias_gradient) {
  return {at::empty_symint(x.sym_sizes(), x.options()),
          bias_gradient ? at::empty_symint({x.sym_size(1)}, float_like(x))
                        : at::empty({0}, float_like(x))};
}

Pair call_mask(const Tensor& x, const OptionalTensor& bias, const OptionalTensor& residual,
               double p, int64_t seed, int64_t step, int64_t site, const Tensor& sample,
               const Tensor& position, bool bias_gradient) {
  static const auto op = find_operator<decltype(dropout_mask)>("tautline::dropout_mask");
  return op.call(x, bias, residual, p, seed, step, site, sample, position, bias_gradient);
}

struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x,
                        const OptionalTensor& bias, const OptionalTensor& residual, double p,
                        int64_t seed, int64_t step, int64_t site, const Tensor& sample,
                        const Tensor& position) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({sample, position});
    ctx->saved_data["p"] = p;
    ctx->saved_data["key"] = std::vector<int64_t>{seed, step, site};
    ctx->saved_data["bias"] = bias.has_value();
    ctx->saved_data["bias_type"] = bias ? bias->scalar_type() : at::kFloat;
    ctx->saved_data["residual"] = residual.has_value();
    return std::get<0>(call_mask(x, bias, residual, p, seed, step, site, sample, position, false));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto key = ctx->saved_data["key"].toIntVector();
    const bool bias = ctx->saved_data["bias"].toBool();
    auto [d_x, d_bias] =
        call_mask(gradients[0], std::nullopt, std::nullopt, ctx->saved_data["p"].toDouble(), key[0],
                  key[1], key[2], saved[0], saved[1], bias);
    if (bias) d_bias = d_bias.to(ctx->saved_data["bias_type"].toScalarType());
    const bool residual = ctx->saved_data["residual"].toBool();
    return {d_x,
            bias ? d_bias : Tensor(),
            residual ? gradients[0] : Tensor(),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor()};
  }
};

Tensor dropout_plain(const Tensor& x, double p, int64_t seed, int64_t step, int64_t site,
                     const Tensor& sample, const Tensor& position) {
  return std::get<0>(
      call_mask(x, std::nullopt, std::nullopt, p, seed, step, site, sample, position, false));
}
Tensor dropout_add_plain(const Tensor& x, const OptionalTensor& bias, const Tensor& residual,
                         double p, int64_t seed, int64_t step, int64_t site, const Tensor& sample,
                         const Tensor& position) {
  return std::get<0>(call_mask(x, bias, residual, p, seed, step, site, sample, position, false));
}
Tensor dropout_autograd(const Tensor& x, double p, int64_t seed, int64_t step, int64_t site,
                        const Tensor& sample, const Tensor& position) {
  return DropoutFunction::apply(x, OptionalTensor(), OptionalTensor(), p, seed, step, site, sample,
                                position);
}

}  // namespace

Tensor dropout(const Tensor& x, double p, int64_t seed, int64_t step, int64_t site,
               const Tensor& sample, const Tensor& position) {
  if (p == 0) return x;  // an operator of the dispatcher must not return its input
  return dropout_autograd(x, p, seed, step, site, sample, position);
}
Tensor dropout_add(const Tensor& x, const OptionalTensor& bias, const Tensor& residual, double p,
                   int64_t seed, int64_t step, int64_t site, const Tensor& sample,
                   const Tensor& position) {
  return DropoutFunction::apply(x, bias, OptionalTensor(residual), p, seed, step, site, sample,
                                position);
}

TORCH_LIBRARY_FRAGMENT(tautline, m) {
  m.def(
      "dropout(Tensor x, float p, int seed, int step, int site, Tensor sample, Tensor position) -> "
      "Tensor");
  m.def(
      "dropout_add(Tensor x, Tensor? bias, Tensor residual, float p, int seed, int step, int site, "
      "Tensor sample, Tensor position) -> Tensor");
  m.def(
      "dropout_mask(Tensor x, Tensor? bias, Tensor? residual, float p, int seed, int step, int "
      "site, Tensor sample, Tensor position, bool bias_gradient) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(tautline, CPU, m) { m.impl("dropout_mask", dropout_mask); }
TORCH_LIBRARY_IMPL(tautline, CUDA, m) { m.impl("dropout_mask", on_its_device<dropout_mask>); }
TORCH_LIBRARY_IMPL(tautline, Meta, m) { m.impl("dropout_mask", mask_meta); }
TORCH_LIBRARY_IMPL(tautline, CompositeExplicitAutograd, m) {
  m.impl("dropout", dropout_plain);
  m.impl("dropout_add", dropout_add_plain);
}
TORCH_LIBRARY_IMPL(tautline, Autograd, m) {
  m.impl("dropout", dropout_autograd);
  m.impl("dropout_add", dropout_add);
}

}  // namespace tautline::ops
