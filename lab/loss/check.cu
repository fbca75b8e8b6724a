// Is it right, and how fast? The kernels of src/tautline/kernels/softmax_loss_sm90/loss.h against
// plain ones in double, twice for the same bits; then timed on the shapes of bench/loss_gpu.py.
//   check check|time|all
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "tautline/kernels/softmax_loss_sm90/plan.h"

using namespace tautline::kernels;

#define CHECK(call)                                                                        \
  do {                                                                                     \
    const cudaError_t error = (call);                                                      \
    if (error != cudaSuccess) {                                                            \
      std::printf("%s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error)); \
      std::fflush(stdout);                                                                 \
      std::_Exit(1);                                                                       \
    }                                                                                      \
  } while (0)

struct Case {
  const char* name;
  int64_t n, v, d;
  bool half = false, sampled = false, target = false, given = false, float_items = false;
  float size = 1;         // of a logit
  bool few_hits = false;  // one row in a thousand has some
  bool wide_ids = false;  // some agree in their low halves alone
  bool one_id = false;    // every column is a hit of row 0
};

template <class T>
T* allocate(int64_t n) {
  T* p = nullptr;
  CHECK(cudaMalloc(&p, std::max<int64_t>(1, n) * sizeof(T) + 256));
  CHECK(cudaMemset(p, 0xff, std::max<int64_t>(1, n) * sizeof(T) + 256));
  return p;
}
template <class T>
std::vector<T> download(const T* p, int64_t n) {
  std::vector<T> host(n);
  CHECK(cudaMemcpy(host.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}

__device__ float normal(uint64_t i, uint32_t seed) {
  uint64_t z = (i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  float sum = 0;
  for (int c = 0; c < 4; ++c) sum += ((z >> 16 * c) & 0xffff) / 65536.f - .5f;
  return sum * 1.7320508f;
}
template <class T>
__global__ void fill(T* x, int64_t n, uint32_t seed, float size) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x)
    x[i] = static_cast<T>(normal(i, seed) * size);
}
enum class Ids { kTarget, kRow, kColumn };
__global__ void fill_ids(int64_t* x, int64_t n, int64_t v, Ids what, bool few, bool wide,
                         bool one) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    const auto random = static_cast<int64_t>((normal(i, 7 + int(what)) + 4) * 100003);
    if (what == Ids::kTarget) {
      x[i] = i % 7 == 3 ? -1 : random % v;
    } else {
      // A tenth of the columns share an id with another; some ids differ by 2^32 alone.
      x[i] = what == Ids::kColumn ? i - (i % 10 == 5) : few && i % 1000 ? v + i : random % v;
      if (wide && i % 3 == 0) x[i] += int64_t{1} << 32;
      if (one) x[i] = what == Ids::kColumn ? -5 : i == 0 ? -5 : x[i];
    }
  }
}

// The plain kernels.
template <class T>
__global__ void plain_logits(SoftmaxLossSm90 p, double* x) {
  const int64_t r = blockIdx.x;
  const T *h = static_cast<const T*>(p.h) + r * p.width, *items = static_cast<const T*>(p.items);
  for (int64_t j = threadIdx.x; j < p.classes; j += blockDim.x) {
    double dot = 0;
    for (int64_t k = 0; k < p.width; ++k)
      dot += double(float(h[k])) * double(float(items[j * p.width + k]));
    const bool hit = p.column_id && p.row_id && p.column_id[j] == p.row_id[r];
    x[r * p.classes + j] = hit ? -INFINITY : dot * p.scale - (p.log_q ? p.log_q[j] : 0);
  }
}
/// A thread a row: {max, sum, target's logit, lse}; x becomes exp(x - lse).
__global__ void plain_rows(SoftmaxLossSm90 p, double* x, double* out) {
  const int64_t r = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (r >= p.rows) return;
  x += r * p.classes;
  double max = p.extra ? p.extra[r] : -INFINITY, sum = 0;
  for (int64_t j = 0; j < p.classes; ++j) max = fmax(max, x[j]);
  if (max > -INFINITY) {
    for (int64_t j = 0; j < p.classes; ++j) sum += exp(x[j] - max);
    if (p.extra) sum += exp(p.extra[r] - max);
  }
  const double lse = p.lse ? p.lse[r] : max + log(sum);
  out[4 * r] = max, out[4 * r + 1] = sum, out[4 * r + 3] = lse;
  out[4 * r + 2] = p.target && p.target[r] >= 0 ? x[p.target[r]] : 0;
  for (int64_t j = 0; j < p.classes; ++j) x[j] = x[j] > -INFINITY ? exp(x[j] - lse) : 0;
}
/// out[a][k] = sum_b (p_ab - [target]) y[b][k]; its terms' sizes; the y's.
template <class T>
__global__ void plain_gradient(SoftmaxLossSm90 p, const double* x, bool rows, double* out) {
  const int64_t a = blockIdx.x, many = rows ? p.classes : p.rows;
  const T* y = static_cast<const T*>(rows ? p.items : p.h);
  for (int64_t k = threadIdx.x; k < p.width; k += blockDim.x) {
    double sum = 0, size = 0, all = 0;
    for (int64_t b = 0; b < many; ++b) {
      const int64_t r = rows ? a : b, j = rows ? b : a;
      const double weight = x[r * p.classes + j], one = p.target && p.target[r] == j;
      const double z = double(float(y[b * p.width + k]));
      sum += (weight - one) * z;
      size += (weight + one) * fabs(z);
      all += fabs(z);
    }
    double* to = out + 3 * (a * p.width + k);
    to[0] = sum * p.weight, to[1] = size * fabs(p.weight), to[2] = all * fabs(p.weight);
  }
}

int failures = 0;
void verdict(const char* what, double share, int64_t at, double got, double want) {
  std::printf(" %s %.2f", what, share);
  if (share <= 1) return;
  std::printf(" WRONG at %ld: got %.9g want %.9g", long(at), got, want);
  ++failures;
}

struct Device {
  SoftmaxLossSm90 p;
  std::vector<void*> owned;
  template <class T>
  T* keep(T* x) {
    owned.push_back(const_cast<std::remove_const_t<T>*>(x));
    return x;
  }
  ~Device() {
    for (void* x : owned) cudaFree(x);
  }
  explicit Device(const Case& c) {
    p.rows = c.n, p.classes = c.v, p.width = c.d;
    p.element = c.half ? Element::kFloat16 : Element::kBFloat16;
    p.items_element = c.float_items ? Element::kFloat32 : p.element;
    const float size = std::sqrt(c.size / std::sqrt(static_cast<float>(c.d)));
    const auto matrix = [&](int64_t n, uint32_t seed) -> void* {
      if (c.half) {
        __half* x = keep(allocate<__half>(n * c.d));
        fill<<<1024, 256>>>(x, n * c.d, seed, size);
        return x;
      }
      __nv_bfloat16* x = keep(allocate<__nv_bfloat16>(n * c.d));
      fill<<<1024, 256>>>(x, n * c.d, seed, size);
      return x;
    };
    p.h = matrix(c.n, 1), p.items = matrix(c.v, 2);
    p.scale = .7f, p.weight = .3f;
    const auto floats = [&](int64_t n, uint32_t seed, float mean) {
      float* x = keep(allocate<float>(n));
      fill<<<1024, 256>>>(x, n, seed, 1 + std::fabs(mean));
      return x;
    };
    const auto id = [&](int64_t n, Ids what) {
      int64_t* x = keep(allocate<int64_t>(n));
      fill_ids<<<1024, 256>>>(x, n, c.v, what, c.few_hits, c.wide_ids, c.one_id);
      return x;
    };
    if (c.sampled) {
      p.log_q = floats(c.v, 3, 0), p.extra = floats(c.n, 4, c.size);
      p.column_id = id(c.v, Ids::kColumn), p.row_id = id(c.n, Ids::kRow);
    }
    if (c.target) p.target = id(c.n, Ids::kTarget);
    if (c.given) {
      std::vector<float> lse(c.n);
      for (int64_t r = 0; r < c.n; ++r)
        lse[r] = std::log(static_cast<float>(c.v)) + c.size * c.size / 2 + 1 + r % 5;
      float* x = keep(allocate<float>(c.n));
      CHECK(cudaMemcpy(x, lse.data(), c.n * 4, cudaMemcpyHostToDevice));
      p.lse = x;
    }
    p.max = keep(allocate<float>(c.n)), p.sum = keep(allocate<float>(c.n));
    p.target_logit = keep(allocate<float>(c.n));
    p.d_h = keep(allocate<uint16_t>(c.n * c.d));
    p.d_items = keep(allocate<float>(c.v * c.d));
    const int64_t bytes = softmax_loss_sm90_workspace(p);
    p.workspace = keep(allocate<char>(bytes));
    CHECK(cudaDeviceSynchronize());
  }
};

double value_of(const std::vector<char>& x, Element e, int64_t i) {
  if (e == Element::kFloat32) return reinterpret_cast<const float*>(x.data())[i];
  if (e == Element::kFloat16) return __half2float(reinterpret_cast<const __half*>(x.data())[i]);
  return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(x.data())[i]);
}

void check(const Case& c) {
  Device device(c);
  SoftmaxLossSm90& p = device.p;
  if (const char* why = softmax_loss_sm90_refuses(p)) {
    std::printf("%s: refused, %s\n", c.name, why);
    ++failures;
    return;
  }
  double* x = device.keep(allocate<double>(c.n * c.v));
  double* rows = device.keep(allocate<double>(4 * c.n));
  double* d_h = device.keep(allocate<double>(3 * c.n * c.d));
  double* d_items = device.keep(allocate<double>(3 * c.v * c.d));
  const auto plain = [&](auto zero) {
    using T = decltype(zero);
    plain_logits<T><<<c.n, 128>>>(p, x);
    plain_rows<<<(c.n + 63) / 64, 64>>>(p, x, rows);
    plain_gradient<T><<<c.n, 128>>>(p, x, true, d_h);
    plain_gradient<T><<<c.v, 128>>>(p, x, false, d_items);
  };
  c.half ? plain(__half{}) : plain(__nv_bfloat16{});
  CHECK(cudaDeviceSynchronize());
  const auto plan = softmax_sm90::items_plan(p);
  std::printf("%-10s %s N %5ld V %5ld d %3ld x %.0e, %d splits:", c.name, c.half ? "fp16" : "bf16",
              long(c.n), long(c.v), long(c.d), c.size, plan.splits);
  std::fflush(stdout);

  // Bounds: logits err by some units of their size; the largest is about 5 deviations.
  const double largest = 6.0 * c.size + 8, u = c.half ? 0x1p-11 : 0x1p-8;
  const double logit = largest * (16 + c.d / 8.) * 0x1p-24;
  const auto want = download(rows, 4 * c.n);
  const auto statistics = [&](const char* what, const float* got, int field, bool relative) {
    const auto y = download(got, c.n);
    double worst = 0;
    int64_t at = 0;
    for (int64_t r = 0; r < c.n; ++r) {
      if (field == 2 && !(want[4 * r + 3] > -INFINITY)) continue;
      const double w = want[4 * r + field];
      const double bound = relative ? w * (2 * logit + 1e-5) + 1e-30 : logit;
      const double share = w == y[r] ? 0 : std::isfinite(y[r]) ? std::abs(y[r] - w) / bound : 1e9;
      if (share > worst) worst = share, at = r;
    }
    verdict(what, worst, at, y[at], want[4 * at + field]);
  };
  const auto gradients = [&](const char* what, const void* got, Element e, const double* reference,
                             int64_t count, double floor, std::vector<char>* keep) {
    *keep = download(static_cast<const char*>(got), count * element_bytes(e));
    const auto w = download(reference, 3 * count);
    double worst = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double bound = (e == Element::kFloat32 ? 1e-6 : u) * std::abs(w[3 * i]) +
                           (u + logit + 1e-5) * w[3 * i + 1] + floor * w[3 * i + 2] +
                           (e == Element::kFloat16 ? 0x1p-25 : 0) + 1e-30;
      const double y = value_of(*keep, e, i), share = std::abs(y - w[3 * i]) / bound;
      if (!(share <= worst)) worst = std::isnan(share) ? 1e9 : share, at = i;
    }
    verdict(what, worst, at, value_of(*keep, e, at), w[3 * at]);
  };
  void *const to_h = p.d_h, *const to_items = p.d_items;
  for (const bool gradient : {false, true}) {
    if (!gradient && c.given) continue;
    CHECK(cudaMemset(p.max, 0xff, c.n * 4));
    CHECK(cudaMemset(p.sum, 0xff, c.n * 4));
    p.d_h = gradient ? to_h : nullptr, p.d_items = gradient ? to_items : nullptr;
    softmax_loss_sm90(p);
    CHECK(cudaDeviceSynchronize());
    if (c.given) continue;
    statistics("max", p.max, 0, false);
    statistics("sum", p.sum, 1, true);
    if (!c.target) continue;
    std::vector<float> y = download(p.target_logit, c.n);
    const auto target = download(p.target, c.n);
    double worst = 0;
    int64_t at = 0;
    for (int64_t r = 0; r < c.n; ++r) {
      if (target[r] < 0) continue;
      const double w = want[4 * r + 2];
      const double share = w == y[r] ? 0 : std::isfinite(y[r]) ? std::abs(y[r] - w) / logit : 1e9;
      if (share > worst) worst = share, at = r;
    }
    verdict("target", worst, at, y[at], want[4 * at + 2]);
  }
  std::vector<char> first_h, first_items, h, items;
  const double floor = c.half ? 0x1p-25 : 0;
  gradients("d_h", p.d_h, p.element, d_h, c.n * c.d, floor, &first_h);
  gradients("d_items", p.d_items, p.items_element, d_items, c.v * c.d, floor * 0x1p-10,
            &first_items);
  for (int i = 0; i < 3; ++i) {
    softmax_loss_sm90(p);
    CHECK(cudaDeviceSynchronize());
    if (download(static_cast<const char*>(p.d_h), first_h.size()) != first_h ||
        download(static_cast<const char*>(p.d_items), first_items.size()) != first_items) {
      std::printf(" NOT THE SAME BITS");
      ++failures;
      break;
    }
  }
  std::printf("\n");
  std::fflush(stdout);
}

void time_passes(const Case& c) {
  Device device(c);
  SoftmaxLossSm90& p = device.p;
  p.scale = p.weight = 1;
  cudaEvent_t from, to;
  CHECK(cudaEventCreate(&from));
  CHECK(cudaEventCreate(&to));
  const auto median = [&](const auto& run) {
    for (int i = 0; i < 3; ++i) run();
    std::vector<float> times(15);
    for (float& ms : times) {
      CHECK(cudaEventRecord(from));
      run();
      CHECK(cudaEventRecord(to));
      CHECK(cudaEventSynchronize(to));
      CHECK(cudaEventElapsedTime(&ms, from, to));
    }
    std::sort(times.begin(), times.end());
    return 1e3 * times[times.size() / 2];
  };
  void *const d_h = p.d_h, *const d_items = p.d_items;
  const double both = median([&] { softmax_loss_sm90(p); });
  p.d_items = nullptr;
  const double rows = median([&] { softmax_loss_sm90(p); });
  p.d_h = nullptr;
  const double statistics = median([&] { softmax_loss_sm90(p); });
  p.d_h = d_h, p.d_items = d_items;
  const auto a = softmax_sm90::rows_plan(p), b = softmax_sm90::items_plan(p);
  std::printf(
      "%-10s N %6ld V %6ld d %3ld: both %8.1f us %4.0f TFLOP/s of 6 NVd; rows %8.1f us, statistics "
      "alone %8.1f us; CTAs %d, %d x %d\n",
      c.name, long(c.n), long(c.v), long(c.d), both, 6e-6 * c.n * c.v * c.d / both, rows,
      statistics, a.members, b.splits, b.members);
  std::fflush(stdout);
}

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "all";
  std::vector<Case> cases;
  for (const bool half : {false, true}) {
    for (const int64_t d : {8, 40, 64, 96, 128, 136, 200, 256})
      for (const auto& [n, v] : {std::pair<int64_t, int64_t>{1, 1},
                                 {63, 7},
                                 {64, 127},
                                 {65, 128},
                                 {257, 1025},
                                 {1000, 300}}) {
        Case full{"full", n, v, d, half};
        full.target = true;
        cases.push_back(full);
        Case sampled{"sampled", n, v, d, half, true};
        sampled.wide_ids = n % 2;
        cases.push_back(sampled);
      }
    for (const int64_t d : {64, 128, 256}) {
      Case c{"everything", 700, 900, d, half, true, true};
      c.wide_ids = c.float_items = c.one_id = true;
      cases.push_back(c);
      Case given{"given lse", 300, 1100, d, half, false, true, true};
      cases.push_back(given);
      Case steep{"steep", 300, 700, d, half, false, true};
      steep.size = 3000;
      if (!half) cases.push_back(steep);
      Case many{"many rows", 20000, 1024, d, half, true};
      cases.push_back(many);
      Case wide{"many items", 2000, 20000, d, half, false, true};
      cases.push_back(wide);
    }
  }
  if (mode != "time") {
    for (const Case& c : cases) check(c);
    std::printf("%d failures of %zu cases\n", failures, cases.size());
  }
  if (mode == "check") return failures > 0;
  for (const auto& [n, v, d] : {std::tuple<int64_t, int64_t, int64_t>{201000, 1024, 64},
                                {102000, 1024, 64},
                                {25000, 1024, 64},
                                {100000, 1024, 256},
                                {102000, 1024, 128}})
    for (const bool few : {false, true}) {
      Case c{few ? "few hits" : "sampled", n, v, d, false, true};
      c.few_hits = few;
      time_passes(c);
    }
  for (const int64_t d : {64, 128, 256}) {
    Case c{"full", 50000, 100000, d};
    c.target = true;
    time_passes(c);
  }
  return failures > 0;
}
