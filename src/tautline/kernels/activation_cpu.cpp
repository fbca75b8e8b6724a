// activation.h on the CPU.
#include <algorithm>

#include "tautline/kernels/activation.h"
#include "tautline/kernels/activation_simd.h"

namespace tautline::kernels::TAUTLINE_ISA {
namespace {

void gelu_forward_row(const float* x, const float* bias, float* out, int64_t width) {
  for_lanes(width, [&](int64_t d, int n) {
    Vf v = load_some(x + d, n);
    if (bias) v += load_some(bias + d, n);
    store_some(out + d, v * gauss(v).cdf, n);
  });
}

void gelu_backward_row(const float* x, const float* bias, const float* d_out, float* d_x,
                       float* d_bias, int64_t width) {
  for_lanes(width, [&](int64_t d, int n) {
    Vf v = load_some(x + d, n);
    if (bias) v += load_some(bias + d, n);
    const Gauss g = gauss(v);
    const Vf slope = g.cdf + v * g.bell * 0.39894228f;  // density = bell / sqrt(2 pi)
    const Vf gradient = load_some(d_out + d, n) * slope;
    store_some(d_x + d, gradient, n);
    if (d_bias) store_some(d_bias + d, load_some(d_bias + d, n) + gradient, n);
  });
}

void swiglu_forward_row(const float* x, const float* bias, float* out, int64_t width) {
  for_lanes(width, [&](int64_t d, int n) {
    Vf g = load_some(x + d, n), u = load_some(x + width + d, n);
    if (bias) {
      g += load_some(bias + d, n);
      u += load_some(bias + width + d, n);
    }
    store_some(out + d, g * sigmoid(g) * u, n);
  });
}

void swiglu_backward_row(const float* x, const float* bias, const float* d_out, float* d_x,
                         float* d_bias, int64_t width) {
  for_lanes(width, [&](int64_t d, int n) {
    Vf g = load_some(x + d, n), u = load_some(x + width + d, n);
    if (bias) {
      g += load_some(bias + d, n);
      u += load_some(bias + width + d, n);
    }
    const Vf dy = load_some(d_out + d, n), s = sigmoid(g);
    const Vf d_gate = dy * u * s * (1.0f + g * (1.0f - s)), d_up = dy * g * s;
    store_some(d_x + d, d_gate, n);
    store_some(d_x + width + d, d_up, n);
    if (d_bias) {
      store_some(d_bias + d, load_some(d_bias + d, n) + d_gate, n);
      store_some(d_bias + width + d, load_some(d_bias + width + d, n) + d_up, n);
    }
  });
}

}  // namespace

void activation_forward_cpu(const Activation& p, int64_t begin, int64_t end) {
  const auto row = p.kind == ActivationKind::kGelu ? gelu_forward_row : swiglu_forward_row;
  for (int64_t t = begin; t < end; ++t)
    row(floats(p.x) + t * p.input_width(), p.bias, floats(p.out) + t * p.width, p.width);
}

void activation_backward_cpu(const Activation& p, int64_t begin, int64_t end) {
  const auto row = p.kind == ActivationKind::kGelu ? gelu_backward_row : swiglu_backward_row;
  const int64_t input = p.input_width();
  for (int64_t block = begin; block < end; ++block) {
    float* d_bias = p.d_bias ? p.workspace + block * input : nullptr;
    if (d_bias) std::fill_n(d_bias, input, 0.0f);
    const int64_t last = std::min(p.rows, (block + 1) * kActivationBlockRows);
    for (int64_t t = block * kActivationBlockRows; t < last; ++t)
      row(floats(p.x) + t * input, p.bias, floats(p.d_out) + t * p.width, floats(p.d_x) + t * input,
          d_bias, p.width);
  }
}

void activation_backward_finish_cpu(const Activation& p) {
  const int64_t input = p.input_width();
  for (int64_t d = 0; d < input; ++d) {
    float total = 0;
    for (int64_t block = 0; block < p.partials; ++block) total += p.workspace[block * input + d];
    p.d_bias[d] = total;
  }
}

}  // namespace tautline::kernels::TAUTLINE_ISA
