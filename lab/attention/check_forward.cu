// Are the forward kernels right, and how fast? Every variant that is linked in, against a plain kernel
// in double precision, then timed on the shapes of the bench: fixed lengths, uniform (s = .5),
// log-normal ones.
//
// A row may be off by twice the error of the same formula in bf16 or fp16 steps (scores, weights and
// output rounded, as PyTorch does it) plus one step of the row's largest value.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "tautline/kernels/gdpa.h"

#include "variants.h"

using namespace tautline::kernels;

#define CHECK(call)                                                          \
  do {                                                                       \
    const cudaError_t error = (call);                                        \
    if (error != cudaSuccess) {                                              \
      std::printf("%s:%d %s\n", #call, __LINE__, cudaGetErrorString(error)); \
      std::exit(1);                                                          \
    }                                                                        \
  } while (0)

struct Case {
  std::string name;
  std::vector<int64_t> q, k;
  int heads, kv_heads;
  int64_t left = -1, right = -1;
  bool poison = false;  // odd sequences are NaN
  bool seeds = false;   // one set of q[0] queries for all
  double sharp = 1;     // times the scale
};

__device__ float unit(uint64_t x) {
  x = (x + 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 30)) * 0x94d049bb133111ebull;
  return static_cast<float>((x ^ (x >> 31)) >> 40) * 0x1p-24f;
}
template <class E>
__global__ void normals(E* x, int64_t n) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step)
    x[i] = E(sqrtf(-2 * logf(unit(2 * i) + 1e-7f)) * cospif(2 * unit(2 * i + 1)));
}
template <class E>
__global__ void poison(E* x, const int64_t* offsets, int64_t stride) {
  if (blockIdx.x % 2 == 0) return;
  for (int64_t i = offsets[blockIdx.x] * stride + threadIdx.x; i < offsets[blockIdx.x + 1] * stride;
       i += blockDim.x)
    x[i] = E(i % 3 ? NAN : INFINITY);
}

__device__ double f(int activation, double s) {
  switch (static_cast<ScoreActivation>(activation)) {
    case ScoreActivation::kIdentity:
      return s;
    case ScoreActivation::kRelu:
      return fmax(s, 0.);
    case ScoreActivation::kSquaredRelu:
      return fmax(s, 0.) * fmax(s, 0.);
    case ScoreActivation::kSilu:
      return s / (1 + exp(-s));
    case ScoreActivation::kGelu:
      return s * normcdf(s);
    case ScoreActivation::kGeluTanh:
      return s / 2 * (1 + tanh(0.7978845608028654 * (s + 0.044715 * s * s * s)));
    case ScoreActivation::kLeakyRelu:
      return s > 0 ? s : .01 * s;
    default:
      return s * fmin(fmax(s + 3, 0.), 6.) / 6;
  }
}

/// One block a (row, head): the exact output, the share of its tolerance that `got` uses.
template <class E>
__global__ void judge(AttentionProblem p, const int64_t* q_offsets, const float* lse, int b,
                      int activation, double alpha, double beta, float* share, float* lse_off) {
  const int64_t i = blockIdx.x, h = blockIdx.y, g = h / (p.heads / p.kv_heads);
  const int64_t k0 = p.k_offsets[b], nk = p.k_offsets[b + 1] - k0;
  const int64_t row = q_offsets[b] + i, nq = q_offsets[b + 1] - q_offsets[b];
  const int64_t q0 = p.q_offsets ? row : i;
  const KeyRange seen = visible_keys(p.window, i, nq, nk);
  const auto at = [](const HeadsView& v, int64_t t, int64_t h) {
    return static_cast<const E*>(v.data) + t * v.token_stride + h * v.head_stride;
  };
  extern __shared__ double score[];
  float* coarse = reinterpret_cast<float*>(score + nk);
  for (int64_t j = seen.first + threadIdx.x; j < seen.last; j += blockDim.x) {
    double x = 0;
    for (int d = 0; d < p.head_dim; ++d)
      x += double(float(at(p.q, q0, h)[d])) * double(float(at(p.k, k0 + j, g)[d]));
    score[j] = x * alpha;
    coarse[j] = float(E(float(x * alpha)));
  }
  __syncthreads();
  double most = -INFINITY, sum = 0;
  float coarse_most = -INFINITY, coarse_sum = 0;
  if (activation < 0) {
    for (int64_t j = seen.first; j < seen.last; ++j)
      most = fmax(most, score[j]), coarse_most = fmaxf(coarse_most, coarse[j]);
    for (int64_t j = seen.first; j < seen.last; ++j)
      sum += exp(score[j] - most), coarse_sum += expf(coarse[j] - coarse_most);
  }
  __syncthreads();
  for (int64_t j = seen.first + threadIdx.x; j < seen.last; j += blockDim.x) {
    score[j] = activation < 0 ? exp(score[j] - most) / sum : beta * f(activation, score[j]);
    coarse[j] = activation < 0 ? float(E(expf(coarse[j] - coarse_most) / coarse_sum))
                               : float(E(float(f(activation, coarse[j]))));
  }
  __syncthreads();
  __shared__ float worst[3][128];
  float off = 0, reference_off = 0, largest = 0;
  for (int d = threadIdx.x; d < p.head_dim; d += blockDim.x) {
    double y = 0, z = 0;
    for (int64_t j = seen.first; j < seen.last; ++j) {
      const double v = double(float(at(p.v, k0 + j, g)[d]));
      y += score[j] * v, z += double(coarse[j]) * v;
    }
    if (activation >= 0) z = beta * double(float(E(float(z))));
    const float got = float(at(p.o, row, h)[d]);
    const float here = fabs(got - y);
    off = here <= off ? off : here;  // NaN counts
    reference_off = fmaxf(reference_off, fabs(double(float(E(float(z)))) - y));
    largest = fmaxf(largest, fabs(y));
  }
  worst[0][threadIdx.x] = off, worst[1][threadIdx.x] = reference_off,
  worst[2][threadIdx.x] = largest;
  __syncthreads();
  if (threadIdx.x == 0) {
    off = reference_off = largest = 0;
    for (int t = 0; t < blockDim.x; ++t) {
      off = worst[0][t] <= off ? off : worst[0][t];
      reference_off = fmaxf(reference_off, worst[1][t]), largest = fmaxf(largest, worst[2][t]);
    }
    const float step = std::is_same_v<E, __half> ? 0x1p-10f : 0x1p-7f;
    share[h * p.rows + row] = off / (2 * reference_off + step * largest + 1e-30f);
    if (activation < 0) {
      const float want = seen.last > seen.first ? float(most + log(sum)) : -INFINITY;
      const float have = lse[h * p.rows + row];
      lse_off[h * p.rows + row] = want == have ? 0 : fabsf(want - have) / (1 + 0.1f * fabsf(want));
    }
  }
}

template <class T>
T* device(const std::vector<T>& host) {
  T* p = nullptr;
  CHECK(cudaMalloc(&p, std::max<size_t>(1, host.size()) * sizeof(T)));
  CHECK(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}
std::vector<int64_t> prefix(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> sums{0};
  for (const int64_t n : lengths) sums.push_back(sums.back() + n);
  return sums;
}

/// The library's order for the variant's tiles; or (natural) as the sequences come.
std::vector<int32_t> order_of(const Case& c, const Variant& v, bool natural) {
  const std::vector<int64_t> q_offsets = prefix(c.q), k_offsets = prefix(c.k);
  AttentionOrderRequest r;
  r.q_offsets = q_offsets.data(), r.k_offsets = k_offsets.data();
  r.sequences = static_cast<int64_t>(c.k.size());
  r.window = {c.left, c.right};
  r.tile = v.tile, r.other_tile = v.keys;
  if (v.tile == 2 * v.queries) r.pair_group = 64;
  std::vector<int32_t> tiles;
  for (const AttentionItem& item : natural ? attention_items(r) : attention_order(r))
    tiles.push_back(item.sequence), tiles.push_back(item.tile);
  return tiles;
}

bool in_order = false;  // time the tiles in their natural order too
std::string part;       // of the names of the cases that are timed

template <class E>
void run_as(const Case& c, const Variant& v, bool verify) {
  const auto sequences = static_cast<int64_t>(c.k.size());
  const std::vector<int64_t> q_offsets = prefix(c.q), k_offsets = prefix(c.k);
  const int64_t rows = q_offsets.back(), k_tokens = k_offsets.back();
  const int64_t q_tokens = c.seeds ? c.q[0] : rows;
  const int dim = v.dim;
  const int64_t kv_width = int64_t{c.kv_heads} * dim, q_width = int64_t{c.heads} * dim;
  const bool packed = c.q == c.k && !c.seeds;
  const int64_t q_stride = packed ? q_width + 2 * kv_width : q_width + 8;
  const int64_t k_stride = packed ? q_stride : 2 * kv_width;
  E *q, *k, *o;
  float *lse, *share, *lse_off;
  CHECK(cudaMalloc(&q, (q_tokens * q_stride + 64) * 2));
  normals<<<1024, 256>>>(q, q_tokens * q_stride);
  if (packed) {
    k = q + q_width;
  } else {
    CHECK(cudaMalloc(&k, (k_tokens * k_stride + 64) * 2));
    normals<<<1024, 256>>>(k, k_tokens * k_stride);
  }
  CHECK(cudaMalloc(&o, rows * q_width * 2 + 64));
  CHECK(cudaMalloc(&lse, c.heads * rows * 4 + 64));
  CHECK(cudaMemset(o, 0x7f, rows * q_width * 2));
  AttentionProblem p;
  p.q = {q, q_stride, dim};
  p.k = {k, k_stride, dim};
  p.v = {k + kv_width, k_stride, dim};
  p.o = {o, q_width, dim};
  int64_t* q_device = device(q_offsets);
  p.q_offsets = c.seeds ? nullptr : q_device;
  p.k_offsets = device(k_offsets);
  p.sequences = sequences;
  p.heads = c.heads;
  p.kv_heads = c.kv_heads;
  p.head_dim = p.value_dim = dim;
  p.rows = rows;
  p.k_tokens = k_tokens;
  p.max_q = *std::max_element(c.q.begin(), c.q.end());
  p.max_k = *std::max_element(c.k.begin(), c.k.end());
  p.window = {c.left, c.right};
  p.element = v.half ? Element::kFloat16 : Element::kBFloat16;
  if (c.poison) {
    if (!c.seeds) poison<<<sequences, 256>>>(q, q_device, q_stride);
    if (!packed) poison<<<sequences, 256>>>(k, p.k_offsets, k_stride);
  }
  const double alpha = c.sharp / std::sqrt(double(dim)), beta = v.softmax ? 1 : 1. / 64;
  const double scale = v.softmax ? alpha * 1.4426950408889634 : alpha;
  for (int kind = 0; kind < (!verify && in_order ? 2 : 1); ++kind) {
    const std::vector<int32_t> tiles = order_of(c, v, kind == 1);
    const auto items = static_cast<int32_t>(tiles.size() / 2);
    const AttentionOrder on_device{device(tiles), device(std::vector<int32_t>{items, v.tile})};
    sm90::ScoreNumbers numbers;
    numbers.scale = static_cast<float>(scale);
    numbers.finish = static_cast<float>(beta);
    const auto go = [&] { v.launch({p, on_device, numbers, lse}); };
    go();
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    if (verify) {
      const size_t bytes = rows * q_width * 2;
      std::vector<uint16_t> once(bytes / 2), twice(bytes / 2);
      CHECK(cudaMemcpy(once.data(), o, bytes, cudaMemcpyDeviceToHost));
      for (int i = 0; i < 3; ++i) go();
      CHECK(cudaMemcpy(twice.data(), o, bytes, cudaMemcpyDeviceToHost));
      const bool same = once == twice;
      CHECK(cudaMalloc(&share, c.heads * rows * 4 + 64));
      CHECK(cudaMalloc(&lse_off, c.heads * rows * 4 + 64));
      CHECK(cudaMemset(share, 0, c.heads * rows * 4));
      CHECK(cudaMemset(lse_off, 0, c.heads * rows * 4));
      for (int64_t b = 0; b < sequences; ++b)
        if (c.q[b] > 0 && !(c.poison && b % 2))
          judge<E><<<dim3(c.q[b], c.heads), 128, c.k[b] * 12 + 16>>>(
              p, q_device, lse, static_cast<int>(b), v.activation, alpha, beta, share, lse_off);
      CHECK(cudaGetLastError());
      CHECK(cudaDeviceSynchronize());
      std::vector<float> shares(c.heads * rows), offs(c.heads * rows);
      CHECK(cudaMemcpy(shares.data(), share, shares.size() * 4, cudaMemcpyDeviceToHost));
      CHECK(cudaMemcpy(offs.data(), lse_off, offs.size() * 4, cudaMemcpyDeviceToHost));
      float worst = 0, worst_lse = 0;
      int bad = 0;
      for (size_t i = 0; i < shares.size(); ++i) {
        worst = shares[i] <= worst ? worst : shares[i];
        worst_lse = offs[i] <= worst_lse ? worst_lse : offs[i];
        if (!(shares[i] <= 1) || !(offs[i] < 1e-4f)) {
          if (bad++ < 6) {
            const int64_t row = i % rows, h = i / rows;
            const auto b =
                std::upper_bound(q_offsets.begin(), q_offsets.end(), row) - q_offsets.begin() - 1;
            std::printf("  bad: sequence %ld (%ld x %ld) row %ld head %ld: share %g lse off %g\n",
                        long(b), long(c.q[b]), long(c.k[b]), long(row - q_offsets[b]), long(h),
                        shares[i], offs[i]);
          }
        }
      }
      std::printf("%-18s %-26s share of tolerance %.3f lse %.1e bits %s: %s (%d of %zu rows)\n",
                  v.name.c_str(), c.name.c_str(), worst, worst_lse, same ? "same" : "DIFFER",
                  bad || !same ? "WRONG" : "ok", bad, shares.size());
      cudaFree(share), cudaFree(lse_off);
    } else {
      double pairs = 0;
      for (size_t b = 0; b < c.q.size(); ++b)
        for (int64_t i = 0; i < c.q[b]; ++i) {
          const KeyRange seen = visible_keys(p.window, i, c.q[b], c.k[b]);
          pairs += static_cast<double>(seen.last - seen.first);
        }
      cudaEvent_t from, to;
      CHECK(cudaEventCreate(&from));
      CHECK(cudaEventCreate(&to));
      std::vector<float> times(7);
      for (float& ms : times) {
        CHECK(cudaEventRecord(from));
        for (int i = 0; i < 2; ++i) go();
        CHECK(cudaEventRecord(to));
        CHECK(cudaEventSynchronize(to));
        CHECK(cudaEventElapsedTime(&ms, from, to));
        ms /= 2;
      }
      std::sort(times.begin(), times.end());
      const double ms = times[times.size() / 2];
      if (kind == 0)
        std::printf("\n%-18s %-22s H %d D %3d  %8.3f ms  %6.1f TFLOP/s", v.name.c_str(),
                    c.name.c_str(), c.heads, dim, ms, 4.0 * c.heads * dim * pairs / ms * 1e-9);
      else
        std::printf("  as they come %6.1f", 4.0 * c.heads * dim * pairs / ms * 1e-9);
    }
    cudaFree(const_cast<int32_t*>(on_device.tiles)),
        cudaFree(const_cast<int32_t*>(on_device.count));
  }
  cudaFree(q), cudaFree(o), cudaFree(lse), cudaFree(q_device);
  cudaFree(const_cast<int64_t*>(p.k_offsets));
  if (!packed) cudaFree(k);
}
void run(const Case& c, const Variant& v, bool verify) {
  v.half ? run_as<__half>(c, v, verify) : run_as<__nv_bfloat16>(c, v, verify);
}

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

void verify_all(const Variant& v) {
  const std::vector<int64_t> ragged{1, 0, 127, 128, 129, 300, 64, 63, 65, 256, 257, 191, 1000, 5};
  const std::vector<int64_t> other{7, 3, 0, 300, 128, 129, 64, 1, 500, 255, 256, 400, 200, 0};
  run({"one of 64", {64}, {64}, 1, 1}, v, true);
  run({"ragged full", ragged, ragged, 2, 2}, v, true);
  run({"ragged causal", ragged, ragged, 2, 1, -1, 0}, v, true);
  run({"window 63,63", ragged, ragged, 2, 2, 63, 63}, v, true);
  run({"window 127,0", ragged, ragged, 2, 2, 127, 0}, v, true);
  run({"cross full", ragged, other, 4, 2}, v, true);
  run({"cross causal", ragged, other, 4, 1, -1, 0}, v, true);
  run({"cross window 5,200", ragged, other, 2, 2, 5, 200}, v, true);
  run({"poison full", ragged, ragged, 2, 2, -1, -1, true}, v, true);
  run({"poison causal", ragged, ragged, 2, 2, -1, 0, true}, v, true);
  run({"64 seeds", std::vector<int64_t>(other.size(), 64), other, 2, 2, -1, -1, false, true}, v,
      true);
  if (v.softmax) {
    run({"sharp causal", ragged, ragged, 2, 2, -1, 0, false, false, 40}, v, true);
    run({"sharp window", ragged, ragged, 2, 2, 200, 100, false, false, 40}, v, true);
  }
  run({"log-normal causal", log_normal(150, 200, 1500), log_normal(150, 200, 1500), 2, 2, -1, 0}, v,
      true);
  run({"uniform full", uniform(150, 0, 400), uniform(150, 0, 400), 3, 3}, v, true);
}

void time_all(const Variant& v) {
  const auto self = [&](const std::string& name, const std::vector<int64_t>& n, int heads,
                        bool causal) {
    if (name.find(part) != std::string::npos)
      run({name, n, n, heads, heads, -1, causal ? 0 : -1}, v, false);
  };
  if (v.dim == 64) {
    self("mean 394 causal", log_normal(512, 394, 2048), 8, true);
    self("L=256 s=1 d=64", std::vector<int64_t>(1152, 256), 8, false);
    return;
  }
  for (const int64_t n : {256, 512, 1024, 2048}) {
    self("L=" + std::to_string(n) + " s=1", std::vector<int64_t>(1152, n), 4, false);
    self("L=" + std::to_string(n) + " s=.5", uniform(1152, 0, n), 4, false);
  }
  self("mean 394 causal", log_normal(512, 394, 2048), 4, true);
  self("mean 841 causal", log_normal(256, 841, 4096), 4, true);
  self("mean 841", log_normal(256, 841, 4096), 4, false);
  self("mean 2485 causal", log_normal(64, 2485, 8192), 4, true);
}

int main(int count, char** names) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  std::sort(variants().begin(), variants().end(),
            [](const Variant& a, const Variant& b) { return a.name < b.name; });
  if (count > 3) part = names[3];
  in_order = count > 1 && std::strchr(names[1], 'o');
  for (const Variant& v : variants()) {
    if (count > 2 && v.name != names[2]) continue;
    if (count < 2 || std::strchr(names[1], 'v')) verify_all(v);
    const bool timed = count > 2 || v.name.substr(0, 3) != "lib";  // those are many
    if (timed && (count < 2 || std::strchr(names[1], 't'))) time_all(v);
    if (count > 1 && std::strchr(names[1], 'p')) {  // one to profile
      const auto n = log_normal(256, 841, 4096);
      run({"mean 841 causal", n, n, 512 / v.dim, 512 / v.dim, -1, 0}, v, false);
    }
    std::printf("\n");
  }
}
