// What jagged_attention (attention.h) and gdpa (gdpa.h) have in common: the shapes of a jagged
// batch, which keys a query sees, and the additive bias of its scores.
//
// B sequences, Tq and Tk tokens, H heads, G key/value heads (H a multiple of G; query head h reads
// key/value head h / (H / G)), D head dimension of q and k, E of v and o, each 1..256 on the CPU.
// Rows are what the output has: Tq of them, or B * S where one set of S queries stands in for every
// sequence (pooled attention: learned seeds as Q).
// Tensors may be strided views of one packed projection: element (t, h, d) lies at
// t * token_stride + h * head_stride + d.
#pragma once

#include <cstdint>

#include "tautline/kernels/element.h"

namespace tautline::kernels {

/// A [T, H, D] view; strides in elements, the last one is 1.
struct HeadsView {
  void* data = nullptr;
  int64_t token_stride = 0, head_stride = 0;
};

/// Query i of nq lies at key position p = i + nk - nq: a sequence's last query at its last key. It
/// sees keys p - left .. p + right; a negative bound is none.
struct AttentionWindow {
  int64_t left = -1, right = -1;  // each below 2^62
};
inline constexpr AttentionWindow kCausal{-1, 0};

/// Keys [first, last) of a sequence.
struct KeyRange {
  int64_t first, last;
};

TAUTLINE_ELEMENT_FUNCTION int64_t clamp_to(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}
TAUTLINE_ELEMENT_FUNCTION KeyRange visible_keys(AttentionWindow window, int64_t i, int64_t nq,
                                                int64_t nk) {
  const int64_t p = i + nk - nq;
  return {window.left < 0 ? 0 : clamp_to(p - window.left, 0, nk),
          window.right < 0 ? nk : clamp_to(p + window.right + 1, 0, nk)};
}

/// Buckets of a difference of times (any unit, any sign): 0, 1, 2, 3, 4-5, 6-7, 8-11, 12-15, ...,
/// two an octave; the last bucket takes what lies beyond. HSTU's floor(ln d / 0.301) has 2.3 an
/// octave; this one is exact in integers, and the same on every device. 127 cover all of int64.
TAUTLINE_ELEMENT_FUNCTION int32_t time_bucket(int64_t difference, int32_t buckets) {
  const auto octaves =
      static_cast<int32_t>((float_bits(static_cast<float>(difference)) & 0x7fffffffu) >> 22) - 254;
  const int32_t bucket = octaves < 1 ? difference != 0 : octaves;
  return bucket < buckets ? bucket : buckets - 1;
}

/// HSTU's relative bias (Zhai et al. 2024, equation 2): bias(h, i, j) = position[h][r] + time[h][t].
///   r = R - 1 + clamp(p - j, -(R - 1), R - 1) with p as above: distances beyond R - 1 share an
///   entry. t = time_bucket(q_time[i] - k_time[j]).
/// Either table may be absent. A table has one row for each head, or one for all (stride 0).
struct AttentionBias {
  const float* position = nullptr;  // [H or 1, 2R - 1]
  int64_t distances = 0;            // R
  int64_t position_stride = 0;      // 2R - 1, or 0
  const float* time = nullptr;      // [H or 1, N]
  int64_t time_buckets = 0;         // N, below 2^31
  int64_t time_stride = 0;          // N, or 0
  const int64_t* q_time = nullptr;  // [Tq] or [S]
  const int64_t* k_time = nullptr;  // [Tk]
  // Backward: the sums of one (sequence, head) each, and what their sum over sequences (and over
  // heads where the table has one row) goes to.
  float* position_partial = nullptr;  // [H, rows + Tk]: entry nk - 1 + j - p of sequence b lies at
                                      // its first row + its first key token
  float* time_partial = nullptr;      // [H, B, N]
  float* d_position = nullptr;        // as position
  float* d_time = nullptr;            // as time

  TAUTLINE_ELEMENT_FUNCTION bool any() const { return position != nullptr || time != nullptr; }
};

struct AttentionProblem {
  HeadsView q, k, v;                   // [Tq, H, D] or [S, H, D], [Tk, G, D], [Tk, G, E]
  HeadsView o;                         // [rows, H, E]: written by the forward
  const int64_t* q_offsets = nullptr;  // [B + 1]; null: q is [S, H, D] for every sequence
  const int64_t* k_offsets = nullptr;  // [B + 1]; both on the device for CUDA
  int64_t sequences = 0, heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  int64_t rows = 0, k_tokens = 0;  // Tq or B * S, Tk
  int64_t max_q = 0, max_k = 0;    // longest sequence; max_q = S where q_offsets is null
  AttentionWindow window;
  AttentionBias bias;
  Element element = Element::kFloat32;  // of q, k, v, o and their gradients
  // Backward: reads everything above and d_o, writes the rest. Where q_offsets is null, d_q has
  // rows: query_parts gradients, whose sum broadcast_query_finish_cpu forms; one of each sequence, unless
  // the kernel makes fewer.
  HeadsView d_o, d_q, d_k, d_v;
  int64_t query_parts = 0;  // at most B
  void* stream = nullptr;
};

/// Rows of the two bias tables: H, 1 or 0 each.
TAUTLINE_ELEMENT_FUNCTION int64_t position_tables(const AttentionProblem& p) {
  return p.bias.position ? (p.bias.position_stride ? p.heads : 1) : 0;
}
TAUTLINE_ELEMENT_FUNCTION int64_t time_tables(const AttentionProblem& p) {
  return p.bias.time ? (p.bias.time_stride ? p.heads : 1) : 0;
}

}  // namespace tautline::kernels
