// gdpa.h on the CPU; its pieces are in attention_tile_cpu.h. The activation is a template argument:
// it is chosen once a call.
#include "tautline/kernels/activation_simd.h"
#include "tautline/kernels/attention_tile_cpu.h"
#include "tautline/kernels/gdpa.h"

namespace tautline::kernels::TAUTLINE_ISA {
namespace {

/// f(x) and f'(x).
struct Activated {
  Vf value, slope;
};

struct Identity {
  TAUTLINE_ALWAYS_INLINE static Activated at(Vf x) { return {x, splat(1.0f)}; }
};
struct Relu {
  TAUTLINE_ALWAYS_INLINE static Activated at(Vf x) {
    return {x > 0.0f ? x : Vf{}, x > 0.0f ? splat(1.0f) : Vf{}};
  }
};
struct SquaredRelu {
  TAUTLINE_ALWAYS_INLINE static Activated at(Vf x) {
    const Vf r = x > 0.0f ? x : Vf{};
    return {r * r, r + r};
  }
};
struct Silu {
  TAUTLINE_ALWAYS_INLINE static Activated at(Vf x) {
    const Vf s = sigmoid(x), y = x * s;
    return {y, s + y * (1.0f - s)};
  }
};
struct Gelu {
  TAUTLINE_ALWAYS_INLINE static Activated at(Vf x) {
    const Gauss g = gauss(x);
    return {x * g.cdf, g.cdf + x * g.bell * 0.39894228f};  // density = bell / sqrt(2 pi)
  }
};
/// (1 + tanh(u)) / 2 = sigmoid(2u), which keeps its relative precision where tanh(u) nears -1.
struct GeluTanh {
  TAUTLINE_ALWAYS_INLINE static Activated at(Vf x) {
    constexpr float kTwice = 1.5957691216f;  // 2 sqrt(2 / pi)
    const Vf square = x * x, s = sigmoid(kTwice * x * (1.0f + 0.044715f * square)), y = x * s;
    return {y, s + y * (1.0f - s) * (kTwice * (1.0f + 0.134145f * square))};
  }
};
struct LeakyRelu {
  TAUTLINE_ALWAYS_INLINE static Activated at(Vf x) {
    return {x > 0.0f ? x : x * 0.01f, x > 0.0f ? splat(1.0f) : splat(0.01f)};
  }
};
struct HardSwish {
  TAUTLINE_ALWAYS_INLINE static Activated at(Vf x) {
    const Vf inside = x * (x + 3.0f) * (1.0f / 6), slope = x * (1.0f / 3) + 0.5f;
    return {x <= -3.0f  ? Vf{}
            : x >= 3.0f ? x
                        : inside,
            x <= -3.0f  ? Vf{}
            : x >= 3.0f ? splat(1.0f)
                        : slope};
  }
};

/// Calls body(F{}) with the activation's type.
template <class Body>
void with_activation(ScoreActivation activation, Body&& body) {
  switch (activation) {
    case ScoreActivation::kIdentity:
      return body(Identity{});
    case ScoreActivation::kRelu:
      return body(Relu{});
    case ScoreActivation::kSquaredRelu:
      return body(SquaredRelu{});
    case ScoreActivation::kSilu:
      return body(Silu{});
    case ScoreActivation::kGelu:
      return body(Gelu{});
    case ScoreActivation::kGeluTanh:
      return body(GeluTanh{});
    case ScoreActivation::kLeakyRelu:
      return body(LeakyRelu{});
    case ScoreActivation::kHardSwish:
      return body(HardSwish{});
  }
}

template <class F>
void forward_group(const Gdpa& p, const Task& t, const Group& g, const BiasRows* bias, float* score,
                   float* o) {
  std::fill_n(o, kRows * t.padded_value_dim, 0.0f);
  const auto alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
  for (int64_t tile = g.from; tile < g.to; tile += kTile) {
    const int64_t count = std::min(kTile, g.to - tile);
    outer_products(g.query, t.keys_t, t.padded_nk, t.dim, tile, count, score);
    for (int64_t r = 0; r < kRows; ++r) {
      const Span s = span_of(g.keys[r], tile, count);
      float* line = score + r * kTile;
      if (bias) add_bias(*bias, g.i + r, tile, s, alpha, line);
      const float scale = bias ? 1.0f : alpha;
      for_span(s, [&](int64_t j, int n) {
        store(line + j, first_lanes(F::at(load(line + j) * scale).value, n));
      });
      clear_outside(s, line);
    }
    add_weighted_rows(score, t.values + tile * t.padded_value_dim, count, t.padded_value_dim, o);
  }
  for (int64_t r = 0; r < g.rows; ++r) {
    float* out = row_out(p.o, t.first_row + g.i + r, g.head);
    for_lanes(t.value_dim, [&](int64_t d, int n) {
      store_some(out + d, load(o + r * t.padded_value_dim + d) * beta, n);
    });
  }
}

/// beta f(s) and scale_out * d_s of one tile, in place over the scores and the products d_o . v.
template <class F>
void score_gradients(float* score, float* product, const Span& s, float scale, float beta,
                     float scale_out) {
  for_span(s, [&](int64_t j, int n) {
    const Activated f = F::at(load(score + j) * scale);
    store(score + j, first_lanes(f.value * beta, n));
    store(product + j, first_lanes(f.slope * load(product + j) * scale_out, n));
  });
  clear_outside(s, score);
  clear_outside(s, product);
}

template <class F>
void backward_group(const Gdpa& p, const Task& t, const Group& g, const BiasRows* bias,
                    const BackwardMemory& m, TimeSums& time) {
  const float* d_out_rows[kRows];
  load_group(p, t, g, d_out_rows, m);
  const auto alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
  for (int64_t tile = g.from; tile < g.to; tile += kTile) {
    const int64_t count = std::min(kTile, g.to - tile);
    outer_products(g.query, t.keys_t, t.padded_nk, t.dim, tile, count, m.score);
    outer_products(d_out_rows, t.values_t, t.padded_nk, t.value_dim, tile, count, m.product);
    for (int64_t r = 0; r < kRows; ++r) {
      const Span s = span_of(g.keys[r], tile, count);
      float *score = m.score + r * kTile, *product = m.product + r * kTile;
      if (!bias) {
        score_gradients<F>(score, product, s, alpha, beta, alpha * beta);
        continue;
      }
      add_bias(*bias, g.i + r, tile, s, alpha, score);
      score_gradients<F>(score, product, s, 1.0f, beta, beta);
      add_bias_gradient(*bias, g.i + r, tile, s, product, time.sum);
      for_span(s, [&](int64_t j, int) { store(product + j, load(product + j) * alpha); });
    }
    add_tile_gradients(t, tile, count, m);
  }
  store_d_query(p, t, g, m.d_query);
}

template <class F>
void forward(const Gdpa& p, int64_t begin, int64_t end) {
  Workspace workspace;
  for (int64_t index = begin; index < end; ++index) {
    const Task t = make_task(p, index, false, workspace);
    float* score = workspace.take(kRows * kTile);
    float* o = workspace.take(kRows * t.padded_value_dim);
    float* line = p.bias.any() ? workspace.take(t.nq + t.nk) : nullptr;
    for (int64_t head = t.first_head; head < t.first_head + t.heads; ++head) {
      BiasRows bias;
      if (line) bias = make_bias_rows(p, t, head, line);
      for (int64_t i = 0; i < t.nq; i += kRows)
        forward_group<F>(p, t, make_group(p, t, head, i), line ? &bias : nullptr, score, o);
    }
  }
}

template <class F>
void backward(const Gdpa& p, int64_t begin, int64_t end) {
  Workspace workspace;
  TimeSums time(p.bias);
  for (int64_t index = begin; index < end; ++index) {
    const Task t = make_task(p, index, true, workspace);
    const BackwardMemory m = take_backward_memory(t, p.bias.any(), workspace);
    for (int64_t head = t.first_head; head < t.first_head + t.heads; ++head) {
      BiasRows bias;
      if (m.line) bias = make_bias_rows(p, t, head, m.line);
      for (int64_t i = 0; i < t.nq; i += kRows)
        backward_group<F>(p, t, make_group(p, t, head, i), m.line ? &bias : nullptr, m, time);
      if (bias.d_time) time.move_to(bias.d_time);
    }
    store_d_keys(p, t, m);
  }
}

}  // namespace

void gdpa_forward_cpu(const Gdpa& p, int64_t begin, int64_t end) {
  with_activation(p.activation, [&]<class F>(F) { forward<F>(p, begin, end); });
}

void gdpa_backward_cpu(const Gdpa& p, int64_t begin, int64_t end) {
  with_activation(p.activation, [&]<class F>(F) { backward<F>(p, begin, end); });
}

}  // namespace tautline::kernels::TAUTLINE_ISA
