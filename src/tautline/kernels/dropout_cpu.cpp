// dropout.h on the CPU: Philox in vector registers, one block of four channels a lane.
#include <algorithm>

#include "tautline/kernels/dropout.h"
#include "tautline/kernels/simd.h"

namespace tautline::kernels::TAUTLINE_ISA {
namespace {

#if defined(__AVX512F__)
using Bits = __m512i;
#define TAUTLINE_SIMD(name) _mm512_##name
TAUTLINE_ALWAYS_INLINE Bits odd_lanes(Bits even, Bits odd) {  // even's even lanes, odd's odd lanes
  return _mm512_mask_blend_epi32(0xAAAA, even, odd);
}
#else
using Bits = __m256i;
#define TAUTLINE_SIMD(name) _mm256_##name
TAUTLINE_ALWAYS_INLINE Bits odd_lanes(Bits even, Bits odd) {
  return _mm256_blend_epi32(even, odd, 0xAA);
}
#endif
#define TAUTLINE_BITS(v) reinterpret_cast<Bits>(v)

/// High and low words of the products of every lane with m.
TAUTLINE_ALWAYS_INLINE void multiply(Vu a, uint32_t m, Vu& high, Vu& low) {
  const Bits factor = TAUTLINE_SIMD(set1_epi32)(static_cast<int>(m));
  const Bits even = TAUTLINE_SIMD(mul_epu32)(TAUTLINE_BITS(a), factor);
  const Bits odd =
      TAUTLINE_SIMD(mul_epu32)(TAUTLINE_SIMD(srli_epi64)(TAUTLINE_BITS(a), 32), factor);
  high = reinterpret_cast<Vu>(odd_lanes(TAUTLINE_SIMD(srli_epi64)(even, 32), odd));
  low = reinterpret_cast<Vu>(odd_lanes(even, TAUTLINE_SIMD(slli_epi64)(odd, 32)));
}

/// philox(key; c0, c1, c2, c3) for kLanes counters (base/random.h).
TAUTLINE_ALWAYS_INLINE void philox_lanes(uint64_t key, Vu c[4]) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    Vu high0, low0, high1, low1;
    multiply(c[0], 0xD2511F53u, high0, low0);
    multiply(c[2], 0xCD9E8D57u, high1, low1);
    c[0] = high1 ^ c[1] ^ k0;
    c[2] = high0 ^ c[3] ^ k1;
    c[1] = low1;
    c[3] = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

/// Writes 0 or `scale` for the 4 * kLanes channels from 4 * first_block of one token.
///
/// Lane (L, j), the j-th of 128-bit part L, draws block j * parts + L; after the 4 x 4
/// transposition inside the parts, vector j holds kLanes neighbouring channels.
TAUTLINE_ALWAYS_INLINE void draw_factors(const Dropout& p, int64_t t, uint32_t first_block,
                                         float threshold, float scale, float* factor) {
  constexpr int kParts = kLanes / 4;
  const auto sample = static_cast<uint64_t>(p.sample[t]);
  Vu block;
  for (int lane = 0; lane < kLanes; ++lane)
    block[lane] = static_cast<uint32_t>((lane % 4) * kParts + lane / 4);
  Vu c[4] = {block + first_block, Vu{} + static_cast<uint32_t>(p.position[t]),
             Vu{} + static_cast<uint32_t>(sample), Vu{} + static_cast<uint32_t>(sample >> 32)};
  philox_lanes(p.key, c);
  const Bits a = TAUTLINE_SIMD(unpacklo_epi32)(TAUTLINE_BITS(c[0]), TAUTLINE_BITS(c[1]));
  const Bits b = TAUTLINE_SIMD(unpacklo_epi32)(TAUTLINE_BITS(c[2]), TAUTLINE_BITS(c[3]));
  const Bits e = TAUTLINE_SIMD(unpackhi_epi32)(TAUTLINE_BITS(c[0]), TAUTLINE_BITS(c[1]));
  const Bits f = TAUTLINE_SIMD(unpackhi_epi32)(TAUTLINE_BITS(c[2]), TAUTLINE_BITS(c[3]));
  const Bits rows[4] = {TAUTLINE_SIMD(unpacklo_epi64)(a, b), TAUTLINE_SIMD(unpackhi_epi64)(a, b),
                        TAUTLINE_SIMD(unpacklo_epi64)(e, f), TAUTLINE_SIMD(unpackhi_epi64)(e, f)};
  for (int j = 0; j < 4; ++j) {
    const Vu bits = reinterpret_cast<Vu>(rows[j]) >> 8;
    const Vf uniform = __builtin_convertvector(reinterpret_cast<Vi>(bits), Vf) * 0x1p-24f;
    store(factor + j * kLanes, uniform >= threshold ? splat(scale) : Vf{});
  }
}

void dropout_row(const Dropout& p, int64_t t, float* d_bias) {
  const float threshold = static_cast<float>(p.p), scale = static_cast<float>(1 / (1 - p.p));
  const int64_t row = t * p.width;
  const float* x = floats(p.x) + row;
  const float* residual = p.residual ? floats(p.residual) + row : nullptr;
  float* out = floats(p.out) + row;
  float factor[4 * kLanes];
  for (int64_t first = 0; first < p.width; first += 4 * kLanes) {
    draw_factors(p, t, static_cast<uint32_t>(first / 4), threshold, scale, factor);
    const int64_t count = std::min<int64_t>(p.width - first, 4 * kLanes);
    for_lanes(count, [&](int64_t i, int n) {
      const int64_t d = first + i;
      Vf v = load_some(x + d, n);
      if (p.bias) v += load_some(p.bias + d, n);
      // A dropped NaN or infinity is 0, not NaN.
      const Vf f = load(factor + i);
      v = f > 0.0f ? v * f : Vf{};
      if (d_bias) store_some(d_bias + d, load_some(d_bias + d, n) + v, n);
      if (residual) v += load_some(residual + d, n);
      store_some(out + d, v, n);
    });
  }
}

}  // namespace

void dropout_cpu(const Dropout& p, int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; ++block) {
    float* d_bias = p.d_bias ? p.workspace + block * p.width : nullptr;
    if (d_bias) std::fill_n(d_bias, p.width, 0.0f);
    const int64_t last = std::min(p.rows, (block + 1) * kDropoutBlockRows);
    for (int64_t t = block * kDropoutBlockRows; t < last; ++t) dropout_row(p, t, d_bias);
  }
}

void dropout_finish_cpu(const Dropout& p) {
  for (int64_t d = 0; d < p.width; ++d) {
    float total = 0;
    for (int64_t block = 0; block < p.partials; ++block) total += p.workspace[block * p.width + d];
    p.d_bias[d] = total;
  }
}

}  // namespace tautline::kernels::TAUTLINE_ISA
