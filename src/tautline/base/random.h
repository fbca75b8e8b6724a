// Counter-based random numbers: a value is a pure function of (seed, what it is for), never of the
// order in which values were drawn. That is what makes samples, negatives and dropout the same on
// any number of ranks and any number of threads.
//
// The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011, section 4.3): ten rounds of two 32x32->64 bit multiplications, 128-bit counter, 64-bit key.
// The same function compiles for CPU and GPU.
#pragma once

#include <cstdint>
#include <vector>

#if defined(__CUDACC__)
#define TAUTLINE_HOST_DEVICE __host__ __device__ inline
#else
#define TAUTLINE_HOST_DEVICE inline
#endif

namespace tautline {

struct Philox4 {
  uint32_t v[4];
};

/// One block of 128 random bits for counter (c0, c1, c2, c3) under the 64-bit key.
TAUTLINE_HOST_DEVICE Philox4 philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2,
                                    uint32_t c3) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Uniform in [0, 1) with 24 bits.
TAUTLINE_HOST_DEVICE float uniform01(uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

/// What a stream of random numbers is for: the high word of every counter, so that two uses never
/// meet.
enum class RandomUse : uint32_t {
  kParameter = 1,   // initial dense parameters and table rows
  kShuffle = 2,     // order of samples in an epoch
  kChunkPhase = 3,  // where a long history is cut in an epoch
  kNegative = 4,    // sampled-softmax negatives
  kDropout = 5,
  kSynthetic = 6,  // the synthetic log
  kRounding = 7,   // stochastic rounding
};

/// A sequential stream over philox for host code: seed, a use, and an index that names the stream
/// (an epoch, a user, a step). Copying copies the position.
class Random {
 public:
  Random(uint64_t seed, RandomUse use, uint64_t stream = 0)
      : key_(seed), use_(static_cast<uint32_t>(use)), stream_(stream) {}

  uint32_t next32() {
    if (left_ == 0) {
      block_ = philox(key_, static_cast<uint32_t>(counter_++), static_cast<uint32_t>(stream_),
                      static_cast<uint32_t>(stream_ >> 32), use_);
      left_ = 4;
    }
    return block_.v[4 - left_--];
  }
  uint64_t next64() {
    const uint64_t high = next32();
    return high << 32 | next32();
  }
  /// Uniform integer in [0, n), n > 0, without bias worth naming (multiply-shift of 64 bits).
  uint64_t below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next64()) * n) >> 64);
  }
  /// Uniform in [0, 1) with 53 bits.
  double uniform() { return static_cast<double>(next64() >> 11) * 0x1p-53; }
  /// Standard normal (Box-Muller).
  double normal();

 private:
  uint64_t key_;
  uint32_t use_;
  uint64_t stream_;
  uint64_t counter_ = 0;
  Philox4 block_{};
  int left_ = 0;
};

/// The permutation of [0, n) that this stream draws (Fisher-Yates).
std::vector<int64_t> permutation(int64_t n, Random random);

}  // namespace tautline
