// rope.h on the CPU. Sines and cosines cost far more than the rotation, and positions restart with
// each sequence: a range keeps those of its first kKept positions.
#include <cmath>
#include <cstdlib>

#include "tautline/kernels/rope.h"
#include "tautline/kernels/simd.h"

namespace tautline::kernels::TAUTLINE_ISA {
namespace {

constexpr int64_t kKept = 2048;

/// A malloc'd array; std::vector would leave code of this instruction set in shared templates.
struct Buffer {
  explicit Buffer(int64_t n) : data(static_cast<float*>(std::calloc(n > 0 ? n : 1, 4))) {}
  ~Buffer() { std::free(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  float* data;
};

/// cos and sin of position * frequency for every channel pair: [2, half].
void angles(int64_t position, const float* frequency, int64_t half, bool backward, float* table) {
  for (int64_t d = 0; d < half; ++d) {
    const float angle = static_cast<float>(position) * frequency[d];
    table[d] = ::cosf(angle);
    table[half + d] = backward ? -::sinf(angle) : ::sinf(angle);
  }
}

void rotate(const float* in, float* out, const float* table, int64_t half) {
  for_lanes(half, [&](int64_t d, int n) {
    const Vf a = load_some(in + d, n), b = load_some(in + half + d, n);
    const Vf c = load_some(table + d, n), s = load_some(table + half + d, n);
    store_some(out + d, a * c - b * s, n);
    store_some(out + half + d, b * c + a * s, n);
  });
}

}  // namespace

void rope_cpu(const Rope& p, int64_t begin, int64_t end) {
  const int64_t half = p.head_dim / 2, width = p.heads * p.head_dim;
  Buffer frequency(half), kept(kKept * 2 * half), known(kKept), far(2 * half);
  for (int64_t d = 0; d < half; ++d)
    frequency.data[d] = static_cast<float>(::pow(p.base, -2.0 * d / p.head_dim));
  for (int64_t t = begin; t < end; ++t) {
    const int64_t position = p.position[t];
    const bool near = position >= 0 && position < kKept;
    float* table = near ? kept.data + position * 2 * half : far.data;
    if (!near || known.data[position] == 0.0f) {
      angles(position, frequency.data, half, p.backward, table);
      if (near) known.data[position] = 1.0f;
    }
    const float* in = floats(p.in) + t * p.in_token;
    float* out = floats(p.out) + t * p.out_token;
    for (int64_t h = 0; h < 2 * p.heads; ++h)
      rotate(in + h * p.head_dim, out + h * p.head_dim, table, half);
    if (p.with_v && in != out) std::memcpy(out + 2 * width, in + 2 * width, width * sizeof(float));
  }
}

}  // namespace tautline::kernels::TAUTLINE_ISA
