// The oracle of check_backward.cu: attention's forward and backward, a thread block a query or a key, plain loops in
// FP32 on the 16-bit inputs.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "tautline/kernels/attention_sm90/backward.h"

using namespace tautline::kernels;
using bf16 = __nv_bfloat16;

constexpr int kSoftmax = -1;  // as an activation

struct Plain {
  const bf16 *q, *k, *v, *d_o;
  const int64_t *q_offsets, *k_offsets;
  int64_t rows, keys, q_stride, kv_stride;
  int heads, kv_heads, dim;
  AttentionWindow window;
  int activation;
  float scale, beta;
  bf16* o;
  float *lse, *delta, *d_q, *d_k, *d_v;
};

__device__ float to_float(bf16 x) { return __bfloat162float(x); }

/// f(s) and f'(s) of GDPA.
__device__ double2 weight_of(int activation, double s) {
  const double sigmoid = 1 / (1 + exp(-s)), phi = .5 * erfc(-s * .70710678118654752);
  switch (static_cast<ScoreActivation>(activation)) {
    case ScoreActivation::kIdentity:
      return {s, 1};
    case ScoreActivation::kRelu:
      return {s > 0 ? s : 0, s > 0 ? 1. : 0.};
    case ScoreActivation::kSquaredRelu:
      return {s > 0 ? s * s : 0, s > 0 ? 2 * s : 0};
    case ScoreActivation::kSilu:
      return {s * sigmoid, sigmoid * (1 + s * (1 - sigmoid))};
    case ScoreActivation::kGelu:
      return {s * phi, phi + s * .3989422804014327 * exp(-s * s / 2)};
    case ScoreActivation::kGeluTanh: {
      const double c = .7978845608028654, t = tanh(c * (s + .044715 * s * s * s));
      return {.5 * s * (1 + t), .5 * (1 + t) + .5 * s * (1 - t * t) * c * (1 + .134145 * s * s)};
    }
    case ScoreActivation::kLeakyRelu:
      return {s > 0 ? s : .01 * s, s > 0 ? 1. : .01};
    case ScoreActivation::kHardSwish:
      return {s * fmin(fmax(s + 3, 0.), 6.) / 6, s <= -3 ? 0. : s >= 3 ? 1. : (2 * s + 3) / 6};
  }
  return {0, 0};
}

__device__ int64_t sequence_of(const int64_t* offsets, int64_t token) {
  int64_t b = 0;
  while (offsets[b + 1] <= token) ++b;
  return b;
}

/// Scores of one query with all its keys in shared memory; o, lse, delta, d_q.
__global__ void plain_queries(Plain p) {
  extern __shared__ float score[];
  __shared__ float top, total, delta;
  __shared__ float out[128], grad[128];
  const int64_t i = blockIdx.x, h = blockIdx.y, g = h / (p.heads / p.kv_heads);
  const int64_t b = sequence_of(p.q_offsets, i), nq = p.q_offsets[b + 1] - p.q_offsets[b];
  const int64_t k0 = p.k_offsets[b], nk = p.k_offsets[b + 1] - k0;
  const KeyRange keys = visible_keys(p.window, i - p.q_offsets[b], nq, nk);
  const bf16* q = p.q + i * p.q_stride + h * p.dim;
  const bf16* d_o = p.d_o + i * p.q_stride + h * p.dim;
  for (int64_t j = keys.first + threadIdx.x; j < keys.last; j += blockDim.x) {
    const bf16* k = p.k + (k0 + j) * p.kv_stride + g * p.dim;
    float x = 0;
    for (int d = 0; d < p.dim; ++d) x += to_float(q[d]) * to_float(k[d]);
    score[j - keys.first] = x * p.scale;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float m = -INFINITY;
    for (int64_t j = 0; j < keys.last - keys.first; ++j) m = fmaxf(m, score[j]);
    double sum = 0;
    for (int64_t j = 0; j < keys.last - keys.first; ++j) sum += exp(double(score[j]) - m);
    top = m, total = sum;
  }
  __syncthreads();
  const bool none = keys.first >= keys.last;
  for (int d = threadIdx.x; d < p.dim; d += blockDim.x) {
    double y = 0;
    for (int64_t j = keys.first; j < keys.last; ++j)
      y += double(expf(score[j - keys.first] - top)) *
           to_float(p.v[(k0 + j) * p.kv_stride + g * p.dim + d]);
    out[d] = none ? 0 : y / total;
    grad[d] = to_float(d_o[d]);
    p.o[(i * p.heads + h) * p.dim + d] = __float2bfloat16(out[d]);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float x = 0;
    for (int d = 0; d < p.dim; ++d) x += out[d] * grad[d];
    delta = x;
    p.lse[h * p.rows + i] = none ? -INFINITY : top + logf(total);
    p.delta[h * p.rows + i] = x;
  }
  __syncthreads();
  for (int64_t j = keys.first + threadIdx.x; j < keys.last; j += blockDim.x) {
    float x = 0;
    for (int d = 0; d < p.dim; ++d)
      x += grad[d] * to_float(p.v[(k0 + j) * p.kv_stride + g * p.dim + d]);
    if (p.activation == kSoftmax)
      score[j - keys.first] = expf(score[j - keys.first] - top) / total * (x - delta);
    else
      score[j - keys.first] = p.beta * weight_of(p.activation, score[j - keys.first]).y * x;
  }
  __syncthreads();
  for (int d = threadIdx.x; d < p.dim; d += blockDim.x) {
    double y = 0;
    for (int64_t j = keys.first; j < keys.last; ++j)
      y += double(score[j - keys.first]) * to_float(p.k[(k0 + j) * p.kv_stride + g * p.dim + d]);
    p.d_q[(i * p.heads + h) * p.dim + d] = y * p.scale;
  }
}

/// One key: d_k, d_v from lse and delta.
__global__ void plain_keys(Plain p) {
  extern __shared__ float score[];  // [2][nq]
  const int64_t j = blockIdx.x, g = blockIdx.y;
  const int64_t b = sequence_of(p.k_offsets, j), nk = p.k_offsets[b + 1] - p.k_offsets[b];
  const int64_t q0 = p.q_offsets[b], nq = p.q_offsets[b + 1] - q0;
  const bf16* k = p.k + j * p.kv_stride + g * p.dim;
  const bf16* v = p.v + j * p.kv_stride + g * p.dim;
  double dk = 0, dv = 0;
  const int d0 = threadIdx.x;
  for (int64_t h = g * (p.heads / p.kv_heads); h < (g + 1) * (p.heads / p.kv_heads); ++h) {
    for (int64_t i = threadIdx.x; i < nq; i += blockDim.x) {
      const KeyRange keys = visible_keys(p.window, i, nq, nk);
      const int64_t place = j - p.k_offsets[b];
      float x = 0, y = 0;
      for (int d = 0; d < p.dim; ++d) {
        x += to_float(p.q[(q0 + i) * p.q_stride + h * p.dim + d]) * to_float(k[d]);
        y += to_float(p.d_o[(q0 + i) * p.q_stride + h * p.dim + d]) * to_float(v[d]);
      }
      const bool seen = place >= keys.first && place < keys.last;
      if (p.activation == kSoftmax) {
        const float w = seen ? expf(x * p.scale - p.lse[h * p.rows + q0 + i]) : 0;
        score[i] = w;
        score[nq + i] = seen ? w * (y - p.delta[h * p.rows + q0 + i]) : 0;
      } else {
        const double2 w = weight_of(p.activation, x * p.scale);
        score[i] = seen ? p.beta * w.x : 0;
        score[nq + i] = seen ? p.beta * w.y * y : 0;
      }
    }
    __syncthreads();
    if (d0 < p.dim)
      for (int64_t i = 0; i < nq; ++i) {
        if (score[i] == 0 && score[nq + i] == 0) continue;
        dv += double(score[i]) * to_float(p.d_o[(q0 + i) * p.q_stride + h * p.dim + d0]);
        dk += double(score[nq + i]) * to_float(p.q[(q0 + i) * p.q_stride + h * p.dim + d0]);
      }
    __syncthreads();
  }
  if (d0 < p.dim) {
    p.d_k[(j * p.kv_heads + g) * p.dim + d0] = dk * p.scale;
    p.d_v[(j * p.kv_heads + g) * p.dim + d0] = dv;
  }
}
