// bf16 q [Tq, H, D], k and v [Tk, G, D] as strided views (strides in elements, multiples of 8; the
// last one is 1) -> o likewise and lse [H, Tq]. D is 64 or 128. Window as kernels/attention_problem.h.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace tautline::kernels {

/// CTA c computes tiles [starts[c], starts[c + 1]), which the host dealt by falling work, zigzag.
struct AttentionTile {
  int32_t sequence, head;
  int32_t tile;  // queries [128 * tile, ...) of the sequence
};

struct Sm90Forward {
  void *q, *k, *v, *o;
  float* lse;
  int64_t q_token, q_head, k_token, k_head, v_token, v_head, o_token, o_head;
  const int64_t *q_offsets, *k_offsets;  // [B + 1], on the device
  const AttentionTile* tiles;            // of 128 queries, on the device
  const int64_t* starts;                 // [ctas + 1]
  int64_t q_tokens, k_tokens;
  int32_t heads, kv_heads, ctas;
  int64_t left, right;
  float scale;
  cudaStream_t stream;
};

void attention_forward_sm90(const Sm90Forward& p, int head_dim);

}  // namespace tautline::kernels
