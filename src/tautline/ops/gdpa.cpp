// gdpa: attention with an activation in softmax's place (kernels/gdpa.h).
#include "tautline/kernels/gdpa.h"

#include <array>
#include <cmath>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tautline/base/error.h"
#include "tautline/ops/attention_compute.h"
#include "tautline/ops/attention_dispatch.h"
#include "tautline/ops/on_its_device.h"

namespace tautline::ops {
namespace {

using kernels::ScoreActivation;
constexpr std::string_view kName = "gdpa";
constexpr std::array kActivations{std::pair{"identity", ScoreActivation::kIdentity},
                                  std::pair{"relu", ScoreActivation::kRelu},
                                  std::pair{"squared_relu", ScoreActivation::kSquaredRelu},
                                  std::pair{"silu", ScoreActivation::kSilu},
                                  std::pair{"gelu", ScoreActivation::kGelu},
                                  std::pair{"gelu_tanh", ScoreActivation::kGeluTanh},
                                  std::pair{"leaky_relu", ScoreActivation::kLeakyRelu},
                                  std::pair{"hard_swish", ScoreActivation::kHardSwish}};

ScoreActivation activation_of(std::string_view name) {
  std::string known;
  for (const auto& [text, activation] : kActivations) {
    if (name == text) return activation;
    known += std::string(known.empty() ? "" : ", ") + text;
  }
  throw user_error(kName, ": activation '", std::string(name), "' is none of ", known);
}

void check(const AttentionArguments& a, double alpha, double beta) {
  ops::check(a, kName);
  if (!std::isfinite(alpha) || !std::isfinite(beta))
    throw user_error(kName, ": alpha ", alpha, " and beta ", beta, " are not both finite");
}

}  // namespace

Tensor compute_gdpa(const AttentionArguments& a, std::string_view activation, double alpha,
                    double beta, bool fast) {
  const Tensor& q = a.q;
  check(a, alpha, beta);
  const AttentionTensors tensors(a);
  kernels::Gdpa p;
  tensors.fill(p);
  p.activation = activation_of(activation);
  p.alpha = alpha;
  p.beta = beta;
  Tensor o = at::empty({p.rows, p.heads, p.value_dim}, result_options(q));
  p.o = heads_view(o);
  if (q.is_cpu()) {
    parallel(p.sequences * p.kv_heads, task_cost(p),
             [&](int64_t i, int64_t j) { kernels::gdpa_forward_cpu(p, i, j); });
  } else {
    gdpa_forward_cuda(p, a, fast);
  }
  return o.to(q.scalar_type());
}

AttentionGradients compute_gdpa_backward(const AttentionArguments& a, const Tensor& d_o,
                                         std::string_view activation, double alpha, double beta,
                                         bool fast, const GradientViews& into) {
  const Tensor& q = a.q;
  const AttentionTensors tensors(a);
  kernels::Gdpa p;
  tensors.fill(p);
  p.activation = activation_of(activation);
  p.alpha = alpha;
  p.beta = beta;
  AttentionGradientTensors gradients(a, d_o, p, into);
  if (q.is_cpu()) {
    parallel(p.sequences * p.kv_heads, 2 * task_cost(p),
             [&](int64_t i, int64_t j) { kernels::gdpa_backward_cpu(p, i, j); });
  } else {
    gdpa_backward_cuda(p, a, fast);
  }
  return gradients.finish();
}

namespace {

Tensor gdpa_forward(const Tensor& q, const Tensor& k, const Tensor& v,
                    const OptionalTensor& q_offsets, const Tensor& k_offsets, int64_t max_q,
                    int64_t max_k, bool causal, c10::string_view activation, double alpha,
                    double beta, int64_t window_left, int64_t window_right,
                    const OptionalTensor& position_bias, const OptionalTensor& time_bias,
                    const OptionalTensor& q_time, const OptionalTensor& k_time,
                    const OptionalTensor& order, bool fast) {
  const AttentionArguments a{q,      k,      v,           q_offsets,    k_offsets,     max_q,
                             max_k,  causal, window_left, window_right, position_bias, time_bias,
                             q_time, k_time, order};
  return compute_gdpa(a, activation, alpha, beta, fast);
}

AttentionGradients gdpa_backward(const Tensor& d_o, const Tensor& q, const Tensor& k,
                                 const Tensor& v, const OptionalTensor& q_offsets,
                                 const Tensor& k_offsets, int64_t max_q, int64_t max_k, bool causal,
                                 c10::string_view activation, double alpha, double beta,
                                 int64_t window_left, int64_t window_right,
                                 const OptionalTensor& position_bias,
                                 const OptionalTensor& time_bias, const OptionalTensor& q_time,
                                 const OptionalTensor& k_time, const OptionalTensor& order,
                                 bool fast) {
  const AttentionArguments a{q,      k,      v,           q_offsets,    k_offsets,     max_q,
                             max_k,  causal, window_left, window_right, position_bias, time_bias,
                             q_time, k_time, order};
  return compute_gdpa_backward(a, d_o, activation, alpha, beta, fast);
}

Tensor forward_meta(const Tensor& q, const Tensor& k, const Tensor& v,
                    const OptionalTensor& q_offsets, const Tensor& k_offsets, int64_t max_q,
                    int64_t max_k, bool causal, c10::string_view, double, double,
                    int64_t window_left, int64_t window_right, const OptionalTensor& position_bias,
                    const OptionalTensor& time_bias, const OptionalTensor& q_time,
                    const OptionalTensor& k_time, const OptionalTensor& order, bool) {
  const AttentionArguments a{q,      k,      v,           q_offsets,    k_offsets,     max_q,
                             max_k,  causal, window_left, window_right, position_bias, time_bias,
                             q_time, k_time, order};
  return at::empty_symint({a.rows(), q.sym_size(1), v.sym_size(2)}, q.options());
}
AttentionGradients backward_meta(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const OptionalTensor& q_offsets, const Tensor& k_offsets,
                                 int64_t max_q, int64_t max_k, bool causal, c10::string_view,
                                 double, double, int64_t window_left, int64_t window_right,
                                 const OptionalTensor& position_bias,
                                 const OptionalTensor& time_bias, const OptionalTensor& q_time,
                                 const OptionalTensor& k_time, const OptionalTensor& order, bool) {
  return gradients_meta({q, k, v, q_offsets, k_offsets, max_q, max_k, causal, window_left,
                         window_right, position_bias, time_bias, q_time, k_time, order});
}

Tensor call_forward(const Tensor& q, const Tensor& k, const Tensor& v,
                    const OptionalTensor& q_offsets, const Tensor& k_offsets, int64_t max_q,
                    int64_t max_k, std::string_view activation, double alpha, double beta,
                    const AttentionOptions& o) {
  static const auto op = find_operator<decltype(gdpa_forward)>("tautline::gdpa_forward");
  return op.call(q, k, v, q_offsets, k_offsets, max_q, max_k, o.causal, activation, alpha, beta,
                 o.window_left, o.window_right, o.position_bias, o.time_bias, o.q_time, o.k_time,
                 o.order, o.fast);
}

struct GdpaFunction : torch::autograd::Function<GdpaFunction> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& q, const Tensor& k,
                        const Tensor& v, const OptionalTensor& position_bias,
                        const OptionalTensor& time_bias, const OptionalTensor& q_offsets,
                        const Tensor& k_offsets, int64_t max_q, int64_t max_k,
                        std::string_view activation, double alpha, double beta,
                        const AttentionOptions& options) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto or_none = [](const OptionalTensor& x) { return x.value_or(Tensor()); };
    ctx->save_for_backward({q, k, v, or_none(q_offsets), k_offsets, or_none(position_bias),
                            or_none(time_bias), or_none(options.q_time), or_none(options.k_time),
                            or_none(options.order)});
    ctx->saved_data["sizes"] = std::vector<int64_t>{
        max_q, max_k, options.causal, options.window_left, options.window_right, options.fast};
    ctx->saved_data["activation"] = std::string(activation);
    ctx->saved_data["alpha"] = alpha;
    ctx->saved_data["beta"] = beta;
    return call_forward(q, k, v, q_offsets, k_offsets, max_q, max_k, activation, alpha, beta,
                        options);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    static const auto op = find_operator<decltype(gdpa_backward)>("tautline::gdpa_backward");
    const auto s = ctx->get_saved_variables();
    const auto n = ctx->saved_data["sizes"].toIntVector();
    const std::string activation = ctx->saved_data["activation"].toStringRef();
    const auto [d_q, d_k, d_v, d_position, d_time] =
        op.call(gradients[0], s[0], s[1], s[2], if_defined(s[3]), s[4], n[0], n[1], n[2] != 0,
                activation, ctx->saved_data["alpha"].toDouble(), ctx->saved_data["beta"].toDouble(),
                n[3], n[4], if_defined(s[5]), if_defined(s[6]), if_defined(s[7]), if_defined(s[8]),
                if_defined(s[9]), n[5] != 0);
    torch::autograd::variable_list result(13);
    result[0] = d_q;
    result[1] = d_k;
    result[2] = d_v;
    if (s[5].defined()) result[3] = d_position;
    if (s[6].defined()) result[4] = d_time;
    return result;
  }
};

Tensor gdpa_plain(const Tensor& q, const Tensor& k, const Tensor& v,
                  const OptionalTensor& q_offsets, const Tensor& k_offsets, int64_t max_q,
                  int64_t max_k, bool causal, c10::string_view activation, double alpha,
                  double beta, int64_t window_left, int64_t window_right,
                  const OptionalTensor& position_bias, const OptionalTensor& time_bias,
                  const OptionalTensor& q_time, const OptionalTensor& k_time,
                  const OptionalTensor& order, bool fast) {
  return call_forward(
      q, k, v, q_offsets, k_offsets, max_q, max_k, activation, alpha, beta,
      {causal, window_left, window_right, position_bias, time_bias, q_time, k_time, order, fast});
}
Tensor gdpa_autograd(const Tensor& q, const Tensor& k, const Tensor& v,
                     const OptionalTensor& q_offsets, const Tensor& k_offsets, int64_t max_q,
                     int64_t max_k, bool causal, c10::string_view activation, double alpha,
                     double beta, int64_t window_left, int64_t window_right,
                     const OptionalTensor& position_bias, const OptionalTensor& time_bias,
                     const OptionalTensor& q_time, const OptionalTensor& k_time,
                     const OptionalTensor& order, bool fast) {
  return gdpa(
      q, k, v, q_offsets, k_offsets, max_q, max_k, activation, alpha, beta,
      {causal, window_left, window_right, position_bias, time_bias, q_time, k_time, order, fast});
}

}  // namespace

Tensor gdpa(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& q_offsets,
            const Tensor& k_offsets, int64_t max_q, int64_t max_k, std::string_view activation,
            double alpha, double beta, const AttentionOptions& options) {
  return GdpaFunction::apply(q, k, v, options.position_bias, options.time_bias, q_offsets,
                             k_offsets, max_q, max_k, activation, alpha, beta, options);
}

TORCH_LIBRARY_FRAGMENT(tautline, m) {
  m.def(
      "gdpa(Tensor q, Tensor k, Tensor v, Tensor? q_offsets, Tensor k_offsets, int max_q, "
      "int max_k, bool causal, str activation, float alpha=1.0, float beta=1.0, "
      "int window_left=-1, int window_right=-1, Tensor? position_bias=None, "
      "Tensor? time_bias=None, Tensor? q_time=None, Tensor? k_time=None, Tensor? order=None, "
      "bool fast=False) -> Tensor");
  m.def(
      "gdpa_forward(Tensor q, Tensor k, Tensor v, Tensor? q_offsets, Tensor k_offsets, int max_q, "
      "int max_k, bool causal, str activation, float alpha, float beta, int window_left, "
      "int window_right, Tensor? position_bias, Tensor? time_bias, Tensor? q_time, "
      "Tensor? k_time, Tensor? order, bool fast) -> Tensor");
  m.def(
      "gdpa_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor? q_offsets, "
      "Tensor k_offsets, int max_q, int max_k, bool causal, str activation, float alpha, "
      "float beta, int window_left, int window_right, Tensor? position_bias, Tensor? time_bias, "
      "Tensor? q_time, Tensor? k_time, Tensor? order, bool fast=False) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(tautline, CPU, m) {
  m.impl("gdpa_forward", gdpa_forward);
  m.impl("gdpa_backward", gdpa_backward);
}
TORCH_LIBRARY_IMPL(tautline, CUDA, m) {
  m.impl("gdpa_forward", on_its_device<gdpa_forward>);
  m.impl("gdpa_backward", on_its_device<gdpa_backward>);
}
TORCH_LIBRARY_IMPL(tautline, Meta, m) {
  m.impl("gdpa_forward", forward_meta);
  m.impl("gdpa_backward", backward_meta);
}
TORCH_LIBRARY_IMPL(tautline, CompositeExplicitAutograd, m) { m.impl("gdpa", gdpa_plain); }
TORCH_LIBRARY_IMPL(tautline, Autograd, m) { m.impl("gdpa", gdpa_autograd); }

}  // namespace tautline::ops
