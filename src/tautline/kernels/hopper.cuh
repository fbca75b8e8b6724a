// What the Hopper kernels (sm_90a) share: mbarriers, tensor maps and TMA, wgmma and its shared-memory
// descriptors. Instructions only; PTX ISA 8.5, sections 9.7.9 (asynchronous copies), 9.7.13
// (mbarrier), 9.7.15 (wgmma).
#pragma once

#include <cstdint>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/arch/mma_sm90_gmma_ext.hpp>
#include <utility>

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace tautline::kernels::hopper {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Barriers. A waiter names the parity of the phase that it waits for; a fresh barrier is in phase 0
// and the phase before it (parity 1) counts as complete.

__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals));
}
/// After all barrier_init, before the block's __syncthreads.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
/// One arrival, and `bytes` that TMA loads will bring before the phase ends.
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\n"
      "bra again;\n"
      "ready:\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
/// Among `threads` threads that name the same `id` (1 to 15).
__device__ __forceinline__ void sync_threads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// TMA. Maps have rank 4, see tensor_map in hopper_map.h.

__device__ __forceinline__ void tma_load(const CUtensorMap* map, uint64_t* barrier, void* to,
                                         int32_t c0, int32_t c1, int32_t c2, int32_t c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
/// Plain bytes, a multiple of 16, both ends on a boundary of 16.
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
__device__ __forceinline__ void tma_store(const CUtensorMap* map, const void* from, int32_t c0,
                                          int32_t c1, int32_t c2, int32_t c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%1, {%2, %3, %4, %5}], [%0];" ::"r"(
          shared_address(from)),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
__device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Until this thread's stores have read their shared memory.
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/// Shared memory written by ordinary stores, before TMA or wgmma reads it.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int kRegisters>
__device__ __forceinline__ void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// wgmma. Operands in shared memory are tiles of rows of 64 elements (128 bytes), swizzled by 128
// bytes, on a boundary of 1024 bytes; a head dimension of 128 is two such tiles.

/// A descriptor in two halves: moving it along a tile changes the low one only, and 64-bit sums
/// would cost as many instructions as the products between them.
struct Tile {
  uint32_t low, high;

  /// `leading`: bytes to the next tile of 64 columns; it counts only where the operand is read
  /// transposed.
  __device__ __forceinline__ explicit Tile(const void* tile, uint32_t leading = 0)
      : low((shared_address(tile) & 0x3ffff) >> 4 | leading >> 4 << 16),
        high(1 << 30 | 1024 >> 4) {}  // swizzled by 128 bytes; bytes to the next eight rows
  __device__ __forceinline__ uint64_t at(uint32_t bytes) const {
    return static_cast<uint64_t>(high) << 32 | (low + bytes / 16);
  }
};

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving uses of registers across a wgmma that it cannot see into.
template <int kCount>
__device__ __forceinline__ void hold(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

template <int kCount>
__device__ __forceinline__ void hold(uint32_t (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

namespace wgmma {
using cute::SM90::GMMA::Major;
namespace gmma = cute::SM90::GMMA;

template <class E, int kN>
struct Instruction;
#define TAUTLINE_WGMMA(E, N, NAME)                                               \
  template <>                                                                    \
  struct Instruction<E, N> {                                                     \
    using Shared = gmma::MMA_64x##N##x16_F32##NAME##_SS<Major::K, Major::K>;     \
    using Columns = gmma::MMA_64x##N##x16_F32##NAME##_SS<Major::MN, Major::MN>;  \
    using Registers = gmma::MMA_64x##N##x16_F32##NAME##_RS<Major::K, Major::MN>; \
    using RegistersK = gmma::MMA_64x##N##x16_F32##NAME##_RS<Major::K, Major::K>; \
  };
#define TAUTLINE_WGMMA_N(N)                  \
  TAUTLINE_WGMMA(__nv_bfloat16, N, BF16BF16) \
  TAUTLINE_WGMMA(__half, N, F16F16)
TAUTLINE_WGMMA_N(64)
TAUTLINE_WGMMA_N(80)
TAUTLINE_WGMMA_N(96)
TAUTLINE_WGMMA_N(112)
TAUTLINE_WGMMA_N(128)
TAUTLINE_WGMMA_N(160)
TAUTLINE_WGMMA_N(176)
TAUTLINE_WGMMA_N(192)
TAUTLINE_WGMMA_N(256)
#undef TAUTLINE_WGMMA_N
#undef TAUTLINE_WGMMA

template <class I, size_t... kI>
__device__ __forceinline__ void shared(uint64_t a, uint64_t b, float* c, bool add,
                                       std::index_sequence<kI...>) {
  I::fma(a, b, c[kI]..., add ? gmma::ScaleOut::One : gmma::ScaleOut::Zero);
}
template <class I, size_t... kI>
__device__ __forceinline__ void registers(const uint32_t* a, uint64_t b, float* c, bool add,
                                          std::index_sequence<kI...>) {
  I::fma(a[0], a[1], a[2], a[3], b, c[kI]..., add ? gmma::ScaleOut::One : gmma::ScaleOut::Zero);
}
}  // namespace wgmma

/// c [64, N] = or += a [64, 16] b [N, 16]^T, both in shared memory, depth contiguous.
template <class E, int kN>
__device__ __forceinline__ void mma_shared(uint64_t a, uint64_t b, float (&c)[kN / 2], bool add) {
  wgmma::shared<typename wgmma::Instruction<E, kN>::Shared>(a, b, c, add,
                                                            std::make_index_sequence<kN / 2>{});
}
/// c [64, N] = or += a [16, 64]^T b [16, N], both in shared memory, depth in rows.
template <class E, int kN>
__device__ __forceinline__ void mma_columns(uint64_t a, uint64_t b, float (&c)[kN / 2], bool add) {
  wgmma::shared<typename wgmma::Instruction<E, kN>::Columns>(a, b, c, add,
                                                             std::make_index_sequence<kN / 2>{});
}
/// c [64, N] = or += a [64, 16] b [16, N]: a in registers, b in shared memory, N contiguous.
template <class E, int kN>
__device__ __forceinline__ void mma_registers(const uint32_t* a, uint64_t b, float (&c)[kN / 2],
                                              bool add) {
  wgmma::registers<typename wgmma::Instruction<E, kN>::Registers>(
      a, b, c, add, std::make_index_sequence<kN / 2>{});
}

/// c [64, N] = or += a [64, 16] b [N, 16]^T: a in registers, b in shared memory, depth contiguous.
template <class E, int kN>
__device__ __forceinline__ void mma_registers_shared(const uint32_t* a, uint64_t b,
                                                     float (&c)[kN / 2], bool add) {
  wgmma::registers<typename wgmma::Instruction<E, kN>::RegistersK>(
      a, b, c, add, std::make_index_sequence<kN / 2>{});
}

/// Four 8 x 8 matrices of 2-byte elements; lane l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(const void* row, uint32_t* to) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

/// Two floats rounded to two elements, the first in the low half.
template <class E>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t both;
  if constexpr (std::is_same_v<E, __half>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float tanh_fast(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace tautline::kernels::hopper
