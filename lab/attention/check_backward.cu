// Is it right, and how fast? The backward of src/tautline/kernels/attention_sm90/backward.h against
// plain kernels (FP32, one block a query or key), twice for the same bits, with NaN in a neighbour;
// then timed on the rows of GPU.md.
//   check_backward check|time|all [part of a case's name [head dimension [activation or -1, 3f: fast
//       [least [most `whole`]]]]]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "tautline/kernels/attention_order.h"
#include "tautline/kernels/attention_sm90/backward.h"

#include "check_backward_plain.cuh"

#define CHECK(call)                                                                        \
  do {                                                                                     \
    const cudaError_t error = (call);                                                      \
    if (error != cudaSuccess) {                                                            \
      std::printf("%s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error)); \
      std::fflush(stdout);                                                                 \
      std::_Exit(1);                                                                       \
    }                                                                                      \
  } while (0)

struct Shape {
  std::string name;
  std::vector<int64_t> q, k;  // lengths
  int heads = 1, kv_heads = 1, dim = 128;
  AttentionWindow window;
  int whole = 1024;
  bool poison = false;
  int activation = kSoftmax;
  bool fast = false;
};

/// Pseudo-random, roughly normal.
__global__ void fill(bf16* x, int64_t n, uint32_t seed, float size) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint64_t z = (i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    float sum = 0;
    for (int c = 0; c < 4; ++c) sum += ((z >> 16 * c) & 0xffff) / 65536.f - .5f;
    x[i] = __float2bfloat16(sum * 1.7320508f * size);
  }
}
__global__ void set_lse(float* lse, int64_t n, float value) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x)
    lse[i] = value;
}

template <class T>
T* allocate(int64_t n) {
  T* p = nullptr;
  CHECK(cudaMalloc(&p, std::max<int64_t>(1, n) * sizeof(T) + 256));
  return p;
}
template <class T>
T* upload(const std::vector<T>& host) {
  T* p = allocate<T>(host.size());
  CHECK(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}
template <class T>
std::vector<T> download(const T* p, int64_t n) {
  std::vector<T> host(n);
  CHECK(cudaMemcpy(host.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}

void backward(const AttentionSm90Backward& p) { attention_backward_sm90(p); }

/// The library's list of pairs (sequence, block).
std::vector<int32_t> order(const Shape& c, const std::vector<int64_t>& q_offsets,
                           const std::vector<int64_t>& k_offsets) {
  AttentionOrderRequest r;
  r.q_offsets = q_offsets.data(), r.k_offsets = k_offsets.data();
  r.sequences = static_cast<int64_t>(c.q.size());
  r.window = c.window;
  r.pass = AttentionPass::kKeys;
  r.tile = 128, r.other_tile = c.dim == 64 ? 128 : 64;
  r.whole = c.whole, r.group = c.heads / c.kv_heads;
  std::vector<int32_t> pairs;
  for (const AttentionItem& item : attention_order(r))
    pairs.push_back(item.sequence), pairs.push_back(item.tile);
  return pairs;
}

int failures = 0;

void compare(const char* what, const std::vector<bf16>& got, const std::vector<float>& want,
             const std::vector<int64_t>& offsets, int heads, int dim, int64_t skip) {
  double error = 0, norm = 0, worst = 0, row = 0;
  size_t where = 0;
  int64_t bad = 0, nan = 0;
  std::string first;
  for (size_t i = 0; i < got.size(); ++i) norm += double(want[i]) * want[i];
  const double rms = std::sqrt(norm / std::max<size_t>(1, got.size()));
  int64_t b = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const int64_t token = i / (heads * dim);
    while (offsets[b + 1] <= token) ++b;
    if (b == skip) continue;
    const double x = __bfloat162float(got[i]), e = std::abs(x - want[i]);
    if (i % dim == 0) {
      row = 0;
      for (int d = 0; d < dim; ++d) row = std::max<double>(row, std::abs(want[i + d]));
    }
    const bool wrong = !(e <= .02 * row + .06 * rms + 4e-6);
    if (wrong && bad++ < 4) {
      char text[200];
      std::snprintf(text, sizeof text, "\n      seq %ld row %ld head %ld d %ld: got %g want %g",
                    long(b), long(token - offsets[b]), long(i / dim % heads), long(i % dim), x,
                    double(want[i]));
      first += text;
    }
    if (std::isnan(x)) {
      ++nan;
      continue;
    }
    error += e * e;
    if (e > worst) worst = e, where = i;
  }
  std::printf(" %s rel %.1e max %.1e (rms %.1e)", what, std::sqrt(error / (norm > 0 ? norm : 1)),
              worst, rms);
  if (bad) {
    const int64_t token = where / (heads * dim);
    std::printf(
        " WRONG %ld of %zu, %ld NaN; worst at token %ld head %ld d %ld: got %g want %g%s\n     ",
        long(bad), got.size(), long(nan), long(token), long(where / dim % heads), long(where % dim),
        double(__bfloat162float(got[where])), double(want[where]), first.c_str());
    ++failures;
  }
}

void run(const Shape& c, bool verify) {
  std::vector<int64_t> q_offsets{0}, k_offsets{0};
  double pairs = 0;
  int64_t max_q = 0, max_k = 0;
  for (size_t b = 0; b < c.q.size(); ++b) {
    q_offsets.push_back(q_offsets.back() + c.q[b]);
    k_offsets.push_back(k_offsets.back() + c.k[b]);
    max_q = std::max(max_q, c.q[b]);
    max_k = std::max(max_k, c.k[b]);
    for (int64_t i = 0; i < c.q[b]; ++i) {
      const KeyRange keys = visible_keys(c.window, i, c.q[b], c.k[b]);
      pairs += static_cast<double>(std::max<int64_t>(0, keys.last - keys.first));
    }
  }
  const int64_t rows = q_offsets.back(), keys = k_offsets.back();
  const int64_t wide = int64_t{c.heads} * c.dim, narrow = int64_t{c.kv_heads} * c.dim;
  bf16 *q = allocate<bf16>(rows * wide), *k = allocate<bf16>(keys * narrow);
  bf16 *v = allocate<bf16>(keys * narrow), *d_o = allocate<bf16>(rows * wide);
  bf16 *o = allocate<bf16>(rows * wide), *d_q = allocate<bf16>(rows * wide);
  bf16 *d_k = allocate<bf16>(keys * narrow), *d_v = allocate<bf16>(keys * narrow);
  float* lse = allocate<float>(rows * c.heads);
  fill<<<1024, 256>>>(q, rows * wide, 1, 1.f);
  fill<<<1024, 256>>>(k, keys * narrow, 2, 1.f);
  fill<<<1024, 256>>>(v, keys * narrow, 3, 1.f);
  fill<<<1024, 256>>>(d_o, rows * wide, 4, 1.f);
  fill<<<1024, 256>>>(o, rows * wide, 5, .1f);
  set_lse<<<1024, 256>>>(lse, rows * c.heads,
                         .5f + std::log(float(pairs / std::max<int64_t>(1, rows))));

  AttentionSm90Backward p;
  const auto view = [&](bf16* x, int64_t width) { return HeadsView{x, width, c.dim}; };
  p.q = view(q, wide), p.k = view(k, narrow), p.v = view(v, narrow), p.o = view(o, wide);
  p.d_o = view(d_o, wide), p.d_q = view(d_q, wide), p.d_k = view(d_k, narrow);
  p.d_v = view(d_v, narrow);
  p.lse = lse;
  p.q_offsets = upload(q_offsets), p.k_offsets = upload(k_offsets);
  p.sequences = static_cast<int64_t>(c.q.size());
  p.rows = rows, p.k_tokens = keys, p.max_q = max_q, p.max_k = max_k;
  p.heads = c.heads, p.kv_heads = c.kv_heads, p.head_dim = p.value_dim = c.dim;
  p.window = c.window;
  p.scale = 1 / std::sqrt(static_cast<float>(c.dim));
  p.softmax = c.activation == kSoftmax;
  p.fast = c.fast;
  if (!p.softmax)
    p.activation = static_cast<ScoreActivation>(c.activation), p.beta = .37f, p.scale *= 1.5f;
  const std::vector<int32_t> list = order(c, q_offsets, k_offsets);
  p.tiles = upload(list);
  p.count = upload(std::vector<int32_t>{static_cast<int32_t>(list.size() / 2), c.whole});
  p.whole = c.whole;
  const int64_t bytes = attention_backward_sm90_workspace(p);
  p.workspace = allocate<char>(bytes);
  CHECK(cudaMemset(p.workspace, 0xff, bytes));

  std::printf("%s%-26s H %d/%d D %3d", p.softmax ? "" : "gdpa ", c.name.c_str(), c.heads,
              c.kv_heads, c.dim);
  std::fflush(stdout);
  if (verify) {
    const int64_t bad = c.poison ? 1 : -1;
    Plain r{q,      k,      v,       d_o,        p.q_offsets, p.k_offsets, rows,         keys,
            wide,   narrow, c.heads, c.kv_heads, c.dim,       c.window,    c.activation, p.scale,
            p.beta, o,      lse,     nullptr,    nullptr,     nullptr,     nullptr};
    r.delta = allocate<float>(rows * c.heads);
    r.d_q = allocate<float>(rows * wide);
    r.d_k = allocate<float>(keys * narrow), r.d_v = allocate<float>(keys * narrow);
    const int shared_q = static_cast<int>(max_k * 4 + 16),
              shared_k = static_cast<int>(max_q * 8 + 16);
    CHECK(cudaFuncSetAttribute(plain_queries, cudaFuncAttributeMaxDynamicSharedMemorySize, 200000));
    CHECK(cudaFuncSetAttribute(plain_keys, cudaFuncAttributeMaxDynamicSharedMemorySize, 200000));
    if (rows > 0) plain_queries<<<dim3(rows, c.heads), 128, shared_q>>>(r);
    if (keys > 0) plain_keys<<<dim3(keys, c.kv_heads), 128, shared_k>>>(r);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    if (c.poison) {  // sequence 1 becomes NaN
      const auto spoil = [&](bf16* x, const std::vector<int64_t>& offsets, int64_t width) {
        CHECK(cudaMemset(x + offsets[1] * width, 0xff, (offsets[2] - offsets[1]) * width * 2));
      };
      spoil(q, q_offsets, wide), spoil(k, k_offsets, narrow), spoil(v, k_offsets, narrow);
      spoil(d_o, q_offsets, wide), spoil(o, q_offsets, wide);
    }
    for (bf16* x : {d_q}) CHECK(cudaMemset(x, 0xff, rows * wide * 2));
    for (bf16* x : {d_k, d_v}) CHECK(cudaMemset(x, 0xff, keys * narrow * 2));
    backward(p);
    CHECK(cudaDeviceSynchronize());
    const auto q1 = download(d_q, rows * wide), k1 = download(d_k, keys * narrow),
               v1 = download(d_v, keys * narrow);
    compare("dv", v1, download(r.d_v, keys * narrow), k_offsets, c.kv_heads, c.dim, bad);
    compare("dk", k1, download(r.d_k, keys * narrow), k_offsets, c.kv_heads, c.dim, bad);
    compare("dq", q1, download(r.d_q, rows * wide), q_offsets, c.heads, c.dim, bad);
    for (int repeat = 0; repeat < 3; ++repeat) {
      backward(p);
      CHECK(cudaDeviceSynchronize());
      if (std::memcmp(q1.data(), download(d_q, rows * wide).data(), rows * wide * 2) ||
          std::memcmp(k1.data(), download(d_k, keys * narrow).data(), keys * narrow * 2) ||
          std::memcmp(v1.data(), download(d_v, keys * narrow).data(), keys * narrow * 2)) {
        std::printf(" NOT THE SAME BITS");
        ++failures;
        break;
      }
    }
    for (float* x : {r.delta, r.d_q, r.d_k, r.d_v}) CHECK(cudaFree(x));
  } else {
    cudaEvent_t from, to;
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    for (int i = 0; i < 2; ++i) backward(p);
    CHECK(cudaDeviceSynchronize());
    if (std::getenv("ONCE")) std::_Exit(0);
    std::vector<float> times(11);
    for (float& ms : times) {
      CHECK(cudaEventRecord(from));
      backward(p);
      CHECK(cudaEventRecord(to));
      CHECK(cudaEventSynchronize(to));
      CHECK(cudaEventElapsedTime(&ms, from, to));
    }
    std::sort(times.begin(), times.end());
    const double ms = times[times.size() / 2];
    std::printf("  whole %4d  %8.3f ms  %6.1f TFLOP/s", c.whole, ms,
                10.0 * c.heads * c.dim * pairs / ms * 1e-9);
  }
  std::printf("\n");
  std::fflush(stdout);
  for (const void* x :
       std::initializer_list<const void*>{q, k, v, d_o, o, d_q, d_k, d_v, lse, p.q_offsets,
                                          p.k_offsets, p.tiles, p.count, p.workspace})
    CHECK(cudaFree(const_cast<void*>(x)));
}

std::vector<int64_t> uniform(int64_t sequences, int64_t least, int64_t most) {
  std::mt19937 random(1);
  std::vector<int64_t> lengths(sequences);
  for (int64_t& n : lengths) n = std::uniform_int_distribution<int64_t>(least, most)(random);
  return lengths;
}

/// Log-normal, sigma .9, clipped to [16, most].
std::vector<int64_t> log_normal(int64_t sequences, double mean, int64_t most) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  std::vector<int64_t> lengths(sequences);
  for (int64_t& n : lengths)
    n = std::clamp<int64_t>(std::llround(mean * std::exp(.9 * normal(random) - .405)), 16, most);
  return lengths;
}

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "all", part = argc > 2 ? argv[2] : "";
  const int only = argc > 3 ? std::atoi(argv[3]) : 0;
  const int activation = argc > 4 ? std::atoi(argv[4]) : kSoftmax;
  const bool fast = argc > 4 && std::strchr(argv[4], 'f');
  const int least = argc > 5 ? std::atoi(argv[5]) : 0,
            most = argc > 6 ? std::atoi(argv[6]) : 1 << 30;
  const auto go = [&](Shape c, bool verify) {
    if (c.name.find(part) == std::string::npos || (only && c.dim != only)) return;
    c.activation = activation;
    c.fast = fast;
    if (!verify && (c.whole < least || c.whole > most)) return;
    run(c, verify);
  };
  using Lengths = std::vector<int64_t>;
  if (mode != "time")
    for (const int dim : {128, 64}) {
      const auto same = [&](const char* name, Lengths n, int heads, AttentionWindow window = {},
                            int whole = 1024, bool poison = false) {
        go({name, n, n, heads, heads, dim, window, whole, poison}, true);
      };
      same("one key block", {128}, 1);
      same("64", {64}, 1);
      same("1", {1}, 1);
      same("100", {100}, 1);
      same("256", {256}, 1);
      same("300", {300}, 2);
      same("512 x 3", {512, 512, 512}, 2);
      same("few, ragged", {1, 0, 127, 128, 129, 300, 64, 65, 63, 1000}, 2);
      same("causal 128", {128}, 1, kCausal);
      same("causal 300", {300}, 1, kCausal);
      same("causal few, ragged", {1, 0, 127, 128, 129, 300, 64, 65, 63, 1000}, 2, kCausal);
      same("window few, ragged", {1, 0, 127, 128, 129, 300, 64, 65, 63, 1000}, 2, {63, 63});
      same("window (127, 0)", {700, 1000, 5}, 1, {127, 0});
      same("poison", {100, 77, 200, 300}, 2, {}, 1024, true);
      same("poison causal", {100, 77, 200, 300}, 2, kCausal, 1024, true);
      go({"cross", {100, 0, 300, 50, 64}, {30, 70, 0, 500, 129}, 2, 2, dim}, true);
      go({"cross causal", {100, 0, 300, 50, 64}, {30, 70, 0, 500, 129}, 2, 2, dim, kCausal}, true);
      go({"cross window", {100, 0, 300, 50, 700}, {30, 70, 0, 900, 129}, 2, 2, dim, {20, 10}},
         true);
      go({"grouped", {100, 0, 300, 50, 64}, {100, 70, 300, 500, 129}, 6, 2, dim}, true);
      same("uniform 200 x 4", uniform(200, 0, 300), 4);
      const Lengths few_q = {64, 0, 5, 63, 64}, few_k = {300, 70, 20, 500, 2129};
      go({"few queries", few_q, few_k, 2, 2, dim}, true);
      go({"few queries, grouped", few_q, few_k, 6, 2, dim, {}, 1024, true}, true);
      go({"few queries, chains", few_q, few_k, 2, 2, dim, kCausal, 128}, true);
      go({"few queries, poison", {64, 40, 5, 63}, {300, 70, 20, 500}, 2, 2, dim, {}, 1024, true},
         true);
      go({"few queries, many", uniform(200, 0, 64), uniform(200, 0, 900), 4, 4, dim}, true);
      same("chain 256", {256}, 1, {}, 128);
      same("chain 640", {640}, 1, {}, 128);
      same("chain ragged", {1, 0, 127, 128, 129, 300, 64, 65, 63, 1000}, 2, {}, 256);
      same("chain causal", {1, 0, 127, 128, 129, 300, 64, 65, 63, 1000}, 2, kCausal, 256);
      same("chain window", {900, 300, 1000}, 2, {200, 100}, 128);
      same("chain poison", {400, 77, 600, 300}, 2, {}, 128, true);
      go({"chain cross", {100, 0, 1300, 50, 64}, {300, 70, 20, 500, 2129}, 2, 2, dim, {}, 128},
         true);
      go({"chain grouped", {400, 300}, {390, 500}, 4, 2, dim, {}, 128}, true);
      same("long", {5000}, 2);
      same("long causal", {5000}, 2, kCausal);
      same("chain many", uniform(60, 300, 1500), 4, kCausal, 256);
    }
  std::printf("%s\n", failures ? "FAILED" : "no failure");
  if (mode == "check") return failures != 0;
  for (const int64_t n : {256, 512, 1024, 2048})
    for (const int whole : {128, 256, 512, 1024, 2048}) {
      if (whole > n) continue;
      const auto lengths = uniform(1152, 0, n);
      go({"L=" + std::to_string(n) + " s=1",
          Lengths(1152, n),
          Lengths(1152, n),
          4,
          4,
          128,
          {},
          whole},
         false);
      go({"L=" + std::to_string(n) + " s=.5", lengths, lengths, 4, 4, 128, {}, whole}, false);
    }
  for (const int whole : {256, 1024, 2048}) {
    const auto few = [&](const char* name, Lengths k) {
      go({name, Lengths(k.size(), 64), k, 4, 4, 128, {}, whole}, false);
    };
    few("64 queries U[0,1000]", uniform(1152, 0, 1000));
    few("64 queries 2000", Lengths(1152, 2000));
  }
  for (const int whole : {256, 512, 1024, 2048}) {
    const auto timed = [&](const char* name, Lengths n, int heads, int dim,
                           AttentionWindow window) {
      go({name, n, n, heads, heads, dim, window, whole}, false);
    };
    timed("mean 394 causal", log_normal(512, 394, 2048), 8, 64, kCausal);
    timed("mean 394 causal", log_normal(512, 394, 2048), 4, 128, kCausal);
    timed("mean 841 causal", log_normal(256, 841, 4096), 4, 128, kCausal);
    timed("mean 841 full", log_normal(256, 841, 4096), 4, 128, {});
    timed("mean 2485 causal", log_normal(64, 2485, 8192), 4, 128, kCausal);
    timed("window (63, 63)", uniform(1152, 800, 2000), 4, 128, {63, 63});
  }
}
