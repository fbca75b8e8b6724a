// The CUDA kernels of the dense block on the shapes of the models s, m and l (bf16), as shares of
// the copy rate of the same run: each must read its inputs and write its outputs once.
// Usage: bench_block_gpu OUT.json COMMIT
#include <string>

#include "tautline/kernels/activation.h"
#include "tautline/kernels/dropout.h"
#include "tautline/kernels/norm.h"
#include "tautline/kernels/rope.h"
#include "tautline/kernels/softmax.h"

#include "gpu_timing.cuh"

namespace tautline::bench {
namespace {

using namespace tautline::kernels;

template <class T>
T* allocate(int64_t count) {
  void* at = nullptr;
  check(cudaMalloc(&at, static_cast<size_t>(count) * sizeof(T)));
  return static_cast<T*>(at);
}

__global__ void fill_bf16(uint32_t* words, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const auto h = static_cast<uint32_t>((i * 0x9E3779B97F4A7C15ull) >> 40);
    words[i] = 0x3F003F00u | (h & 0x80FFu) | (h & 0x80FF00u) << 8;  // [-2, 2)
  }
}

__global__ void fill_positions(int64_t* position, int64_t* sample, int64_t count) {
  const int64_t t = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (t >= count) return;
  position[t] = t % 400;
  sample[t] = t / 400;
}

struct Model {
  const char* name;
  int64_t tokens, width, heads, head_dim, mlp;
};

struct Bench {
  double copy = 0;
  std::string json;

  void line(const char* kernel, const Model& m, double bytes, double seconds) {
    const double share = bytes / seconds / copy;
    std::printf("%-20s %s  %7.3f ms  %5.1f %% of the copy rate\n", kernel, m.name, seconds * 1e3,
                share * 100);
    char text[256];
    std::snprintf(text, sizeof text,
                  "    {\"kernel\": \"%s\", \"model\": \"%s\", \"tokens\": %ld, \"width\": %ld, "
                  "\"ms\": %.4f, \"copy_share\": %.4f}",
                  kernel, m.name, static_cast<long>(m.tokens), static_cast<long>(m.width),
                  seconds * 1e3, share);
    json += json.empty() ? text : std::string(",\n") + text;
  }

  void model(const Model& m) {
    const int64_t n = m.tokens * m.width, most = m.tokens * std::max(3 * m.width, 2 * m.mlp);
    uint16_t* buffer[4];
    for (auto& b : buffer) {
      b = allocate<uint16_t>(most);
      fill_bf16<<<2112, 256>>>(reinterpret_cast<uint32_t*>(b), most / 2);
    }
    auto* weight = allocate<float>(2 * m.mlp + m.width);
    auto* grads = allocate<float>(2 * m.mlp + m.width);
    auto* rows = allocate<float>(2 * m.tokens);
    auto *position = allocate<int64_t>(m.tokens), *sample = allocate<int64_t>(m.tokens);
    auto* workspace = allocate<float>(int64_t{4096} * (2 * m.mlp + m.width));
    check(cudaMemset(weight, 0, static_cast<size_t>(2 * m.mlp + m.width) * 4));
    fill_positions<<<static_cast<unsigned>((m.tokens + 255) / 256), 256>>>(position, sample,
                                                                           m.tokens);
    NormForward f;
    f.x = buffer[0];
    f.weight = weight;
    f.out = buffer[2];
    f.rstd = rows;
    f.rows = m.tokens;
    f.width = m.width;
    f.element = Element::kBFloat16;
    line("rms_norm", m, 4.0 * n, median_seconds([&] { norm_forward_cuda(f); }));
    f.residual = buffer[1];
    f.sum = buffer[3];
    line("add_rms_norm", m, 8.0 * n, median_seconds([&] { norm_forward_cuda(f); }));
    f.kind = NormKind::kLayer;
    f.bias = weight;
    f.mean = rows + m.tokens;
    line("add_layer_norm", m, 8.0 * n, median_seconds([&] { norm_forward_cuda(f); }));
    NormBackward b;
    b.d_out = buffer[0];
    b.d_sum = buffer[1];
    b.s = buffer[2];
    b.weight = weight;
    b.rstd = rows;
    b.mean = rows + m.tokens;
    b.d_x = buffer[3];
    b.d_weight = grads;
    b.d_bias = grads + m.width;
    b.workspace = workspace;
    b.partials = norm_partials_cuda(m.tokens, m.width);
    b.rows = m.tokens;
    b.width = m.width;
    b.element = Element::kBFloat16;
    line("rms_norm_backward", m, 8.0 * n, median_seconds([&] { norm_backward_cuda(b); }));
    b.kind = NormKind::kLayer;
    line("layer_norm_backward", m, 8.0 * n, median_seconds([&] { norm_backward_cuda(b); }));
    Rope r;
    r.in = buffer[0];
    r.out = buffer[1];
    r.position = position;
    r.tokens = m.tokens;
    r.heads = m.heads;
    r.head_dim = m.head_dim;
    r.in_token = r.out_token = 3 * m.heads * m.head_dim;
    r.element = Element::kBFloat16;
    line("rope", m, 12.0 * n, median_seconds([&] { rope_cuda(r); }));
    r.in = r.out;
    line("rope in place", m, 8.0 * n, median_seconds([&] { rope_cuda(r); }));
    Activation a;
    a.x = buffer[0];
    a.out = buffer[1];
    a.d_out = buffer[1];
    a.d_x = buffer[2];
    a.rows = m.tokens;
    a.width = m.mlp;
    a.element = Element::kBFloat16;
    const double mlp = static_cast<double>(m.tokens * m.mlp);
    line("swiglu", m, 6.0 * mlp, median_seconds([&] { activation_forward_cuda(a); }));
    line("swiglu_backward", m, 10.0 * mlp, median_seconds([&] { activation_backward_cuda(a); }));
    a.kind = ActivationKind::kGelu;
    line("gelu", m, 4.0 * mlp, median_seconds([&] { activation_forward_cuda(a); }));
    line("gelu_backward", m, 6.0 * mlp, median_seconds([&] { activation_backward_cuda(a); }));
    Dropout d;
    d.x = buffer[0];
    d.residual = buffer[1];
    d.out = buffer[2];
    d.sample = sample;
    d.position = position;
    d.key = 5;
    d.p = 0.1;
    d.rows = m.tokens;
    d.width = m.width;
    d.element = Element::kBFloat16;
    line("dropout_add", m, 6.0 * n, median_seconds([&] { dropout_cuda(d); }));
    softmax(m, buffer[0], rows, weight);
    for (void* at :
         {static_cast<void*>(buffer[0]), static_cast<void*>(buffer[1]),
          static_cast<void*>(buffer[2]), static_cast<void*>(buffer[3]), static_cast<void*>(weight),
          static_cast<void*>(grads), static_cast<void*>(rows), static_cast<void*>(position),
          static_cast<void*>(sample), static_cast<void*>(workspace)})
      check(cudaFree(at));
  }

  /// 1,024 shared negatives, bf16 logits.
  void softmax(const Model& m, void* logits, float* rows, const float* log_q) {
    SoftmaxRows s;
    s.logits = logits;
    s.row_stride = s.classes = 1024;
    s.rows = std::min<int64_t>(m.tokens, 65536);
    s.log_q = log_q;
    s.max = rows;
    s.sum = rows + m.tokens;
    s.lse = rows;
    s.element = Element::kBFloat16;
    const double bytes = 2.0 * static_cast<double>(s.rows * s.classes);
    line("softmax_statistics", m, bytes, median_seconds([&] { softmax_statistics_cuda(s); }));
    line("softmax_gradient", m, 2 * bytes, median_seconds([&] { softmax_gradient_cuda(s); }));
  }
};

int run(const char* path, const char* commit) {
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0));
  int driver = 0;
  check(cudaDriverGetVersion(&driver));
  Bench bench;
  constexpr int64_t kBytes = int64_t{1} << 30;
  auto *from = allocate<char>(kBytes), *to = allocate<char>(kBytes);
  bench.copy = copy_rate(from, to, kBytes);
  check(cudaFree(from));
  check(cudaFree(to));
  std::printf("%s, driver %d, copy %.2f TB/s\n", device.name, driver, bench.copy * 1e-12);
  bench.model({"s", 201'000, 512, 8, 64, 1344});
  bench.model({"m", 103'000, 1024, 8, 128, 2688});
  bench.model({"l", 25'000, 2048, 16, 128, 5440});
  std::FILE* out = std::fopen(path, "w");
  if (out == nullptr) {
    std::fprintf(stderr, "cannot write %s\n", path);
    return 1;
  }
  std::fprintf(
      out,
      "{\n  \"device\": \"%s\", \"driver\": %d, \"nvcc\": \"%d.%d.%d\", \"commit\": \"%s\", "
      "\"copy_tb_per_s\": %.4f,\n  \"results\": [\n%s\n  ]\n}\n",
      device.name, driver, __CUDACC_VER_MAJOR__, __CUDACC_VER_MINOR__, __CUDACC_VER_BUILD__, commit,
      bench.copy * 1e-12, bench.json.c_str());
  return std::fclose(out);
}

}  // namespace
}  // namespace tautline::bench

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: bench_block_gpu OUT.json COMMIT\n");
    return 2;
  }
  return tautline::bench::run(argv[1], argv[2]);
}
