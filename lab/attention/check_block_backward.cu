// Says of each kernel of block attention's backward that is linked in whether it is right (against
// double precision, one thread a row), whether it gives the same bits again and whatever stands in
// the sequences next door, and how fast it is beside the copy rate.
//   ./check_block_backward check | time [SEQUENCES]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "tautline/kernels/block_attention.cuh"

using namespace tautline::kernels;

namespace {

struct Variant {
  const char* name;
  void (*run)(const BlockAttention&, const BlockPlaces&);
};
const Variant variants[] = {
    {"portable", block_attention_fused_backward},
    {"sm90", block_attention_backward_sm90},
};

template <class X>
X* allocate(size_t count) {
  void* at;
  check_cuda(cudaMalloc(&at, count * sizeof(X) + 256), "cudaMalloc");
  return static_cast<X*>(at);
}
template <class X>
void copy_up(X* to, const std::vector<X>& from) {
  check_cuda(cudaMemcpy(to, from.data(), from.size() * sizeof(X), cudaMemcpyHostToDevice), "up");
}
template <class X>
std::vector<X> copy_down(const X* from, size_t count) {
  std::vector<X> to(count);
  check_cuda(cudaMemcpy(to.data(), from, count * sizeof(X), cudaMemcpyDeviceToHost), "down");
  return to;
}

/// The reference's rows, [T, H, D] in double, and its squares, [T, H, 64].
struct Doubles {
  double *q, *k, *v, *d_o, *d_q, *d_k, *d_v, *p, *d_s;
};

__device__ void turn(const BlockAttention& a, double* x, double position) {
  if (a.rope == RopeLayout::kNone) return;
  const int half = static_cast<int>(a.head_dim) / 2;
  for (int c = 0; c < half; ++c) {
    const bool split = a.rope == RopeLayout::kHalfSplit;
    const int i = split ? c : 2 * c, j = split ? c + half : 2 * c + 1;
    const double angle = position * pow(a.rope_base, -2.0 * c / a.head_dim), was = x[i];
    x[i] = was * cos(angle) - x[j] * sin(angle);
    x[j] = x[j] * cos(angle) + was * sin(angle);
  }
}
__device__ void load(const BlockAttention& a, const HeadsView& view, int64_t t, int h, double* x) {
  const auto* row =
      static_cast<uint16_t*>(view.data) + t * view.token_stride + h * view.head_stride;
  for (int d = 0; d < a.head_dim; ++d)
    x[d] = a.element == Element::kBFloat16 ? to_float(BFloat16{row[d]}) : to_float(Float16{row[d]});
}
__device__ double product(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// A thread block for a block and head, a thread for a row.
__global__ void reference(BlockAttention a, BlockPlaces places, Doubles x) {
  const int64_t first = places.token[blockIdx.x], D = a.head_dim;
  const int rows = static_cast<int>(places.token[blockIdx.x + 1] - first);
  const int h = blockIdx.y, i = threadIdx.x, keys = a.causal ? i + 1 : rows;
  const auto at = [&](double* all, int row, int64_t width) {
    return all + ((first + row) * a.heads + h) * width;
  };
  const double position = static_cast<double>(places.place[blockIdx.x] + i);
  const double value_position = a.rotate_values ? position : 0;
  if (i < rows) {
    load(a, a.q, first + i, h, at(x.q, i, D));
    load(a, a.k, first + i, h, at(x.k, i, D));
    load(a, a.v, first + i, h, at(x.v, i, D));
    load(a, a.d_o, first + i, h, at(x.d_o, i, D));
    turn(a, at(x.q, i, D), position);
    turn(a, at(x.k, i, D), position);
    turn(a, at(x.v, i, D), value_position);
  }
  __syncthreads();
  if (i < rows) {
    double *p = at(x.p, i, 64), *d_s = at(x.d_s, i, 64), top = -1e300, sum = 0;
    for (int j = 0; j < keys; ++j) {
      p[j] = a.scale * product(at(x.q, i, D), at(x.k, j, D), D);
      d_s[j] = product(at(x.d_o, i, D), at(x.v, j, D), D);
      top = fmax(top, p[j]);
    }
    for (int j = 0; j < keys; ++j) sum += p[j] = exp(p[j] - top);
    for (int j = 0; j < keys; ++j) p[j] /= sum;
    const double delta = product(p, d_s, keys);
    for (int j = 0; j < keys; ++j) d_s[j] = p[j] * (d_s[j] - delta) * a.scale;
    for (int j = keys; j < 64; ++j) p[j] = d_s[j] = 0;
  }
  __syncthreads();
  if (i >= rows) return;
  for (int d = 0; d < D; ++d) {
    double d_q = 0, d_k = 0, d_v = 0;
    for (int j = 0; j < rows; ++j) {
      d_q += at(x.d_s, i, 64)[j] * at(x.k, j, D)[d];
      d_k += at(x.d_s, j, 64)[i] * at(x.q, j, D)[d];
      d_v += at(x.p, j, 64)[i] * at(x.d_o, j, D)[d];
    }
    at(x.d_q, i, D)[d] = d_q, at(x.d_k, i, D)[d] = d_k, at(x.d_v, i, D)[d] = d_v;
  }
  turn(a, at(x.d_q, i, D), -position);
  turn(a, at(x.d_k, i, D), -position);
  turn(a, at(x.d_v, i, D), -value_position);
}

/// Where the blocks of a batch lie, with some spare ones at the end.
BlockPlaces places_of(const std::vector<int64_t>& offsets, int64_t count) {
  std::vector<int64_t> token, place;
  for (size_t b = 0; b + 1 < offsets.size(); ++b)
    for (int64_t t = offsets[b]; t < offsets[b + 1]; t += kAttentionBlock)
      token.push_back(t), place.push_back(t - offsets[b]);
  token.resize(count + 1, offsets.back());
  place.resize(count);
  auto *tokens = allocate<int64_t>(count + 1), *in_sequence = allocate<int64_t>(count);
  copy_up(tokens, token);
  copy_up(in_sequence, place);
  return {tokens, in_sequence};
}

/// q, k, v in one row of memory, as a projection leaves them; so are their gradients.
struct Case {
  static inline const std::vector<int64_t> kLengths = {0, 1,   15, 16,  17,  63, 64, 65,
                                                       0, 100, 0,  128, 200, 7,  48, 33};
  static constexpr int kPoisoned = 12;  // a sequence
  BlockAttention a;
  BlockPlaces places;
  std::vector<int64_t> offsets{0};
  int64_t row;  // of q: H D
  std::vector<uint16_t> qkv, d_o;
  uint16_t *device_qkv, *device_d_o, *gradients;
  std::vector<double> want;

  Case(Element element, int dim, RopeLayout rope, bool rotate_values, bool causal) {
    for (const int64_t n : kLengths) offsets.push_back(offsets.back() + n);
    const auto sequences = static_cast<int64_t>(kLengths.size());
    a.tokens = offsets.back(), a.sequences = sequences, a.heads = a.kv_heads = 3;
    a.head_dim = dim, a.blocks = a.tokens / kAttentionBlock + sequences, a.causal = causal;
    a.scale = 1 / std::sqrt(dim), a.rope = rope, a.rotate_values = rotate_values;
    a.element = element, row = a.heads * dim;
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto draw = [&](std::vector<uint16_t>& x, int64_t count) {
      for (int64_t i = 0; i < count; ++i)
        x.push_back(element == Element::kBFloat16 ? from_float<BFloat16>(normal(random)).bits
                                                  : from_float<Float16>(normal(random)).bits);
      auto* on_device = allocate<uint16_t>(count);
      copy_up(on_device, x);
      return on_device;
    };
    device_qkv = draw(qkv, a.tokens * 3 * row);
    device_d_o = draw(d_o, a.tokens * row);
    gradients = allocate<uint16_t>(qkv.size());
    const auto part = [&](uint16_t* x, int i) { return HeadsView{x + i * row, 3 * row, dim}; };
    a.q = part(device_qkv, 0), a.k = part(device_qkv, 1), a.v = part(device_qkv, 2);
    a.d_q = part(gradients, 0), a.d_k = part(gradients, 1), a.d_v = part(gradients, 2);
    a.d_o = {device_d_o, row, dim};
    places = places_of(offsets, a.blocks);
    const int64_t n = a.tokens * row, squares = a.tokens * a.heads * 64;
    auto* x = allocate<double>(7 * n + 2 * squares);
    reference<<<dim3(a.blocks, a.heads), 64>>>(a, places,
                                               {x + 3 * n, x + 4 * n, x + 5 * n, x + 6 * n, x,
                                                x + n, x + 2 * n, x + 7 * n, x + 7 * n + squares});
    want = copy_down(x, 3 * n);
    cudaFree(x);
  }
  ~Case() {
    for (const void* x :
         {static_cast<const void*>(device_qkv), static_cast<const void*>(device_d_o),
          static_cast<const void*>(gradients), static_cast<const void*>(places.token),
          static_cast<const void*>(places.place)})
      cudaFree(const_cast<void*>(x));
  }

  std::vector<uint16_t> run(const Variant& v) {
    check_cuda(cudaMemset(gradients, 0xff, qkv.size() * 2), "cudaMemset");
    v.run(a, places);
    check_cuda(cudaDeviceSynchronize(), v.name);
    return copy_down(gradients, qkv.size());
  }
  std::vector<uint16_t> run_poisoned(const Variant& v) {
    auto bad = qkv, bad_d_o = d_o;
    const int64_t from = offsets[kPoisoned], to = offsets[kPoisoned + 1];
    std::fill(bad.begin() + from * 3 * row, bad.begin() + to * 3 * row, uint16_t{0x7fff});  // NaN
    std::fill(bad_d_o.begin() + from * row, bad_d_o.begin() + to * row, uint16_t{0x7fff});
    copy_up(device_qkv, bad), copy_up(device_d_o, bad_d_o);
    auto got = run(v);
    copy_up(device_qkv, qkv), copy_up(device_d_o, d_o);
    return got;
  }
  /// Of one of the three gradients: the error's root mean square, as a share of the gradient's.
  double error(const std::vector<uint16_t>& got, int gradient) const {
    double error = 0, all = 0;
    for (int64_t t = 0; t < a.tokens; ++t)
      for (int64_t i = 0; i < row; ++i) {
        const uint16_t bits = got[(t * 3 + gradient) * row + i];
        const double w = want[(gradient * a.tokens + t) * row + i],
                     x = a.element == Element::kBFloat16 ? to_float(BFloat16{bits})
                                                         : to_float(Float16{bits});
        error += (x - w) * (x - w), all += w * w;
      }
    return std::sqrt(error / all);
  }
  bool clean(const std::vector<uint16_t>& got, const std::vector<uint16_t>& poisoned) const {
    const auto from = offsets[kPoisoned] * 3 * row, to = offsets[kPoisoned + 1] * 3 * row;
    return std::equal(got.begin(), got.begin() + from, poisoned.begin()) &&
           std::equal(got.begin() + to, got.end(), poisoned.begin() + to);
  }
};

/// A rounded input, a rounded operand of each product, a rounded result: four half steps at most,
/// and independent.
bool check(Element element, int dim, RopeLayout rope, bool values, bool causal) {
  Case c(element, dim, rope, values, causal);
  const double allowed = 4 * (element == Element::kBFloat16 ? 0x1p-9 : 0x1p-12);
  bool all = true;
  for (const Variant& v : variants) {
    const auto got = c.run(v);
    const bool same = got == c.run(v), clean = c.clean(got, c.run_poisoned(v));
    const double worst = std::max({c.error(got, 0), c.error(got, 1), c.error(got, 2)}) / allowed;
    all &= same && clean && worst <= 1;
    std::printf("%s %s d=%d rope %d%s %s: %s: %.2f of the tolerance%s%s\n",
                same && clean && worst <= 1 ? "ok " : "BAD",
                element == Element::kBFloat16 ? "bf16" : "fp16", dim, static_cast<int>(rope),
                values ? " of values too" : "", causal ? "causal" : "full", v.name, worst,
                same ? "" : ", other bits", clean ? "" : ", touched by NaN next door");
  }
  return all;
}

__global__ void fill(uint32_t* words, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const auto h = static_cast<uint32_t>((i * 0x9E3779B97F4A7C15ull) >> 40);
    words[i] = 0x3F003F00u | (h & 0x80FFu) | (h & 0x80FF00u) << 8;  // [-2, 2)
  }
}
__global__ void copy(const uint4* from, uint4* to, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x)
    to[i] = from[i];
}

/// Milliseconds.
template <class Run>
float time(Run&& run) {
  cudaEvent_t begin, end;
  float ms = 0;
  check_cuda(cudaEventCreate(&begin), "event"), check_cuda(cudaEventCreate(&end), "event");
  check_cuda(cudaEventRecord(begin), "event");
  run();
  check_cuda(cudaEventRecord(end), "event"), check_cuda(cudaEventSynchronize(end), "event");
  check_cuda(cudaEventElapsedTime(&ms, begin, end), "event");
  cudaEventDestroy(begin), cudaEventDestroy(end);
  return ms;
}
float median(std::vector<float> times) {
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

/// bf16, H = 4, D = 128, lengths U[800, 2000].
void time_all(int sequences) {
  std::mt19937 random(3);
  std::vector<int64_t> offsets{0};
  for (int b = 0; b < sequences; ++b) offsets.push_back(offsets.back() + 800 + random() % 1201);
  BlockAttention a;
  a.tokens = offsets.back(), a.sequences = sequences, a.heads = a.kv_heads = 4, a.head_dim = 128;
  a.blocks = a.tokens / kAttentionBlock + sequences, a.scale = 1 / std::sqrt(128.0);
  a.element = Element::kBFloat16;
  const BlockPlaces places = places_of(offsets, a.blocks);
  const int64_t count = a.tokens * 512;
  HeadsView* const views[] = {&a.q, &a.k, &a.v, &a.d_o, &a.d_q, &a.d_k, &a.d_v};
  for (HeadsView* view : views) {
    *view = {allocate<uint16_t>(count), 512, 128};
    fill<<<2112, 256>>>(static_cast<uint32_t*>(view->data), count / 2);
  }
  std::vector<float> times;
  for (int i = 0; i < 7; ++i)
    times.push_back(time([&] {
      copy<<<2112, 512>>>(static_cast<uint4*>(a.q.data), static_cast<uint4*>(a.d_q.data),
                          count / 8);
    }));
  const float bytes = 3.5f * median(times);  // seven tensors, a copy moves two
  std::printf("%ld tokens; the bytes at the copy rate: %.3f ms\n", static_cast<long>(a.tokens),
              bytes);
  for (const bool causal : {true, false})
    for (const RopeLayout rope : {RopeLayout::kHalfSplit, RopeLayout::kNone}) {
      a.causal = causal, a.rope = rope;
      for (const Variant& v : variants) {
        times.clear();
        for (int i = 0; i < 13; ++i) times.push_back(time([&] { v.run(a, places); }));
        const float ms = median({times.begin() + 2, times.end()});
        std::printf("%s, %s: %s %.3f ms, %.0f %% of the copy rate\n", causal ? "causal" : "full",
                    rope == RopeLayout::kNone ? "no rotary positions" : "rotary positions", v.name,
                    ms, 100 * bytes / ms);
      }
    }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && argv[1] == std::string("time"))
    return time_all(argc > 2 ? std::atoi(argv[2]) : 1152), 0;
  bool all = true;
  for (const Element element : {Element::kBFloat16, Element::kFloat16})
    for (const int dim : {64, 128})
      for (const bool causal : {true, false}) {
        all &= check(element, dim, RopeLayout::kNone, false, causal);
        for (const RopeLayout rope : {RopeLayout::kHalfSplit, RopeLayout::kInterleaved})
          for (const bool values : {false, true}) all &= check(element, dim, rope, values, causal);
      }
  std::puts(all ? "all right" : "NOT right");
  return !all;
}
