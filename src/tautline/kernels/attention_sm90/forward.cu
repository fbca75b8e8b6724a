#include "tautline/base/error.h"
#include "tautline/kernels/attention_sm90/forward.h"
#include "tautline/kernels/attention_sm90/forward_launch.h"
#include "tautline/kernels/hopper_map.h"

namespace tautline::kernels {
namespace {

constexpr double kLog2E = 1.4426950408889634;

void check(const AttentionProblem& p, double scale) {
  if (const char* why = attention_forward_sm90_refuses(p, scale))
    throw user_error("attention on sm_90a: ", why);
}

/// Nothing to compute: no order is read then.
bool empty(const AttentionProblem& p) { return p.rows == 0 || p.heads == 0 || p.sequences == 0; }

sm90::ScoreNumbers gate_of(ScoreActivation activation) {
  constexpr float kSteep = 0x1p100f, kMost = 3.402823466e38f;
  sm90::ScoreNumbers n;
  const auto set = [&](float slope, float offset, float low, float high) {
    n.slope = slope, n.offset = offset, n.low = low, n.high = high;
    return n;
  };
  switch (activation) {
    case ScoreActivation::kRelu:
      return set(kSteep, 0, 0, 1);
    case ScoreActivation::kSquaredRelu:
      return set(1, 0, 0, kMost);
    case ScoreActivation::kLeakyRelu:
      return set(kSteep, 0, 0.01f, 1);
    case ScoreActivation::kHardSwish:
      return set(1.f / 6, 0.5f, 0, 1);
    default:
      return set(0, 1, 1, 1);  // identity
  }
}

}  // namespace

const char* attention_forward_sm90_refuses(const AttentionProblem& p, double scale) {
  constexpr int64_t kMostTokens = int64_t{1} << 29;
  if (p.element != Element::kBFloat16 && p.element != Element::kFloat16)
    return "elements must be bfloat16 or float16";
  const auto fits = [](int64_t dim) { return dim <= 128 && dim % 8 == 0; };
  if (!fits(p.head_dim) || !fits(p.value_dim))
    return "head dimensions must be multiples of 8 up to 128";
  if (p.bias.any()) return "an additive bias is not covered";
  if (!(scale > 0)) return "the scale of softmax must be above 0";
  if (p.rows > kMostTokens || p.k_tokens > kMostTokens) return "more than 2^29 tokens";
  if (!hopper::fits_map(p.q, p.heads) || !hopper::fits_map(p.k, p.kv_heads) ||
      !hopper::fits_map(p.v, p.kv_heads) || !hopper::fits_map(p.o, p.heads))
    return "strides must be multiples of 8 elements, addresses of 16 bytes";
  return nullptr;
}

AttentionOrderRequest attention_forward_sm90_order(const AttentionProblem& p) {
  AttentionOrderRequest r;
  r.q_offsets = p.q_offsets;
  r.k_offsets = p.k_offsets;
  r.sequences = p.sequences;
  r.seeds = p.q_offsets ? 0 : p.max_q;
  r.window = p.window;
  r.tile = sm90::forward_columns(p) == 128 ? sm90::kForwardTile<128> : sm90::kForwardTile<64>;
  r.other_tile = r.pair_group = 64;
  return r;
}

void jagged_attention_forward_sm90(const JaggedAttention& p, const AttentionOrder& order) {
  check(p, p.scale);
  if (empty(p)) return;
  sm90::ScoreNumbers numbers;
  numbers.scale = static_cast<float>(p.scale * kLog2E);
  sm90::forward_softmax({p, order, numbers, p.lse});
}

void gdpa_forward_sm90(const Gdpa& p, const AttentionOrder& order, bool fast) {
  check(p, 1);
  if (empty(p)) return;
  sm90::ScoreNumbers numbers = gate_of(p.activation);
  numbers.scale = static_cast<float>(p.alpha);
  numbers.finish = static_cast<float>(p.beta);
  const sm90::Forward f{p, order, numbers};
  switch (p.activation) {
    case ScoreActivation::kSilu:
      return fast ? sm90::forward_silu_fast(f) : sm90::forward_silu(f);
    case ScoreActivation::kGelu:
      return sm90::forward_gelu(f);
    case ScoreActivation::kGeluTanh:
      return fast ? sm90::forward_gelu_tanh_fast(f) : sm90::forward_gelu_tanh(f);
    default:
      return sm90::forward_gate(f);
  }
}

}  // namespace tautline::kernels
