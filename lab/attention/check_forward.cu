// Is it right, and how fast? attention_forward_sm90 against a plain kernel, then timed on the shapes of
// bench/results/attention.json to come: fixed lengths, uniform ones (s = .5), log-normal ones.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <cuda_bf16.h>

#include "forward_sm90.h"

using namespace tautline::kernels;

#define CHECK(call)                                                       \
  do {                                                                    \
    const cudaError_t error = (call);                                     \
    if (error != cudaSuccess) {                                           \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error)); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (0)

/// One block a (query, head), FP32 throughout; packed [T, 3, H, D] in, [T, H, D] out.
__global__ void plain(const __nv_bfloat16* qkv, const int64_t* offsets, float* o, float* lse, int b,
                      int64_t tokens, int heads, int dim, bool causal, float scale) {
  const int64_t start = offsets[b], n = offsets[b + 1] - start;
  const int64_t i = blockIdx.x, h = blockIdx.y, stride = 3 * heads * dim;
  extern __shared__ float score[];
  const __nv_bfloat16* q = qkv + (start + i) * stride + h * dim;
  const int64_t last = causal ? i + 1 : n;
  for (int64_t j = threadIdx.x; j < last; j += blockDim.x) {
    const __nv_bfloat16* k = qkv + (start + j) * stride + (heads + h) * dim;
    float x = 0;
    for (int d = 0; d < dim; ++d) x += __bfloat162float(q[d]) * __bfloat162float(k[d]);
    score[j] = x * scale;
  }
  __syncthreads();
  float max = -INFINITY, sum = 0;
  for (int64_t j = 0; j < last; ++j) max = fmaxf(max, score[j]);
  for (int64_t j = 0; j < last; ++j) sum += expf(score[j] - max);
  for (int d = threadIdx.x; d < dim; d += blockDim.x) {
    float y = 0;
    for (int64_t j = 0; j < last; ++j)
      y += expf(score[j] - max) *
           __bfloat162float(qkv[(start + j) * stride + (2 * heads + h) * dim + d]);
    o[((start + i) * heads + h) * dim + d] = y / sum;
  }
  if (threadIdx.x == 0) lse[h * tokens + start + i] = max + logf(sum);
}

template <class T>
T* device(const std::vector<T>& host) {
  T* p = nullptr;
  CHECK(cudaMalloc(&p, std::max<size_t>(1, host.size()) * sizeof(T)));
  CHECK(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}

struct Case {
  std::string name;
  std::vector<int64_t> lengths;
  int heads, dim;
  bool causal;
};

std::vector<int64_t> uniform(int64_t sequences, int64_t least, int64_t most) {
  std::mt19937 random(1);
  std::vector<int64_t> lengths(sequences);
  for (int64_t& n : lengths) n = std::uniform_int_distribution<int64_t>(least, most)(random);
  return lengths;
}

/// Log-normal, sigma .9, clipped to [16, most], scaled to the mean.
std::vector<int64_t> log_normal(int64_t sequences, double mean, int64_t most) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  std::vector<int64_t> lengths(sequences);
  for (int64_t& n : lengths)
    n = std::clamp<int64_t>(std::llround(mean * std::exp(.9 * normal(random) - .405)), 16, most);
  return lengths;
}

void run(const Case& c, bool verify) {
  std::vector<int64_t> offsets{0};
  double pairs = 0;
  int64_t longest = 0;
  for (const int64_t n : c.lengths) {
    offsets.push_back(offsets.back() + n);
    longest = std::max(longest, n);
    const auto length = static_cast<double>(n);
    pairs += c.causal ? length * (length + 1) / 2 : length * length;
  }
  const int64_t tokens = offsets.back(), width = int64_t{c.heads} * c.dim;
  std::vector<__nv_bfloat16> host(3 * tokens * width);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> few(1 << 16);
  for (float& x : few) x = normal(random);
  for (size_t i = 0; i < host.size(); ++i)
    host[i] = __float2bfloat16(few[(i * 2654435761u >> 7) % few.size()]);
  __nv_bfloat16 *qkv = device(host), *o = nullptr;
  float *lse = nullptr, *want = nullptr, *want_lse = nullptr;
  CHECK(cudaMalloc(&o, tokens * width * 2 + 16));
  CHECK(cudaMalloc(&lse, c.heads * tokens * 4 + 16));

  AttentionScheduleRequest request;
  request.q_offsets = request.k_offsets = offsets.data();
  request.sequences = static_cast<int64_t>(c.lengths.size());
  request.heads = c.heads;
  if (c.causal) request.window = kCausal;
  const AttentionSchedule schedule = attention_schedule(request);
  Sm90Forward p{};
  p.q = qkv;
  p.k = qkv + width;
  p.v = qkv + 2 * width;
  p.o = o;
  p.lse = lse;
  p.q_token = p.k_token = p.v_token = 3 * width;
  p.o_token = width;
  p.q_head = p.k_head = p.v_head = p.o_head = c.dim;
  p.q_offsets = p.k_offsets = device(offsets);
  p.tiles = device(schedule.tiles);
  p.starts = device(schedule.starts);
  p.q_tokens = p.k_tokens = tokens;
  p.heads = p.kv_heads = c.heads;
  p.ctas = static_cast<int32_t>(request.ctas);
  p.left = -1;
  p.right = c.causal ? 0 : -1;
  p.scale = 1 / std::sqrt(static_cast<float>(c.dim));
  attention_forward_sm90(p, c.dim);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());

  double error = -1, lse_error = -1;
  if (verify) {
    CHECK(cudaMalloc(&want, tokens * width * 4 + 16));
    CHECK(cudaMalloc(&want_lse, c.heads * tokens * 4 + 16));
    for (size_t b = 0; b < c.lengths.size(); ++b)
      if (c.lengths[b] > 0)
        plain<<<dim3(c.lengths[b], c.heads), 128, longest * 4>>>(qkv, p.q_offsets, want, want_lse,
                                                                 static_cast<int>(b), tokens,
                                                                 c.heads, c.dim, c.causal, p.scale);
    CHECK(cudaDeviceSynchronize());
    std::vector<__nv_bfloat16> got(tokens * width);
    std::vector<float> right(tokens * width), got_lse(c.heads * tokens),
        right_lse(c.heads * tokens);
    CHECK(cudaMemcpy(got.data(), o, got.size() * 2, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(right.data(), want, right.size() * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(got_lse.data(), lse, got_lse.size() * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(right_lse.data(), want_lse, right_lse.size() * 4, cudaMemcpyDeviceToHost));
    error = lse_error = 0;
    for (size_t i = 0; i < got.size(); ++i)
      error = std::max<double>(error, std::abs(__bfloat162float(got[i]) - right[i]));
    for (size_t i = 0; i < got_lse.size(); ++i)
      lse_error = std::max<double>(lse_error, std::abs(got_lse[i] - right_lse[i]));
    cudaFree(want);
    cudaFree(want_lse);
  }
  cudaEvent_t from, to;
  CHECK(cudaEventCreate(&from));
  CHECK(cudaEventCreate(&to));
  std::vector<float> times(20);
  for (float& ms : times) {
    CHECK(cudaEventRecord(from));
    attention_forward_sm90(p, c.dim);
    CHECK(cudaEventRecord(to));
    CHECK(cudaEventSynchronize(to));
    CHECK(cudaEventElapsedTime(&ms, from, to));
  }
  std::sort(times.begin(), times.end());
  const double ms = times[times.size() / 2];
  std::printf("%-28s H %d D %3d  balance %.3f  %8.3f ms  %6.1f TFLOP/s", c.name.c_str(), c.heads,
              c.dim, schedule.imbalance(), ms, 4.0 * c.heads * c.dim * pairs / ms * 1e-9);
  if (verify)
    std::printf("  error o %.2e lse %.2e %s", error, lse_error,
                error < .02 && lse_error < 1e-3 ? "ok" : "WRONG");
  std::printf("\n");
  for (void* x : {static_cast<void*>(qkv), static_cast<void*>(o), static_cast<void*>(lse)})
    cudaFree(x);
}

int main() {
  for (const int dim : {64, 128})
    for (const bool causal : {false, true}) {
      run({"few, ragged", {1, 0, 127, 128, 129, 300, 64, 1000}, 2, dim, causal}, true);
      run({"one long", {5000}, 1, dim, causal}, true);
    }
  for (const int64_t n : {256, 512, 1024, 2048}) {
    run({"L=" + std::to_string(n) + " s=1", std::vector<int64_t>(1152, n), 4, 128, false}, false);
    run({"L=" + std::to_string(n) + " s=.5", uniform(1152, 0, n), 4, 128, false}, false);
  }
  run({"mean 394 causal", log_normal(512, 394, 2048), 8, 64, true}, false);
  run({"mean 394 causal", log_normal(512, 394, 2048), 4, 128, true}, false);
  run({"mean 841 causal", log_normal(256, 841, 4096), 4, 128, true}, false);
  run({"mean 841", log_normal(256, 841, 4096), 4, 128, false}, false);
  run({"mean 2485 causal", log_normal(64, 2485, 8192), 4, 128, true}, false);
}
