// What goes around the two passes of loss.h: which instantiation, the corrections, the sums of
// splits.
#include "tautline/kernels/softmax_loss_sm90/config.cuh"
#include "tautline/kernels/vector.cuh"

namespace tautline::kernels {
namespace softmax_sm90 {

using Passes = void(const SoftmaxLossSm90&);
Passes passes_bf16_d64, passes_bf16_d128, passes_bf16_d256, passes_fp16_d64, passes_fp16_d128,
    passes_fp16_d256;

namespace {

/// Corrections of `count` vectors; `start` is log_q of columns, null for zeros. Rows' starts are
/// left to the rows' pass but for those beyond the end.
struct Vectors {
  char* to;
  const int64_t *ids, *target;
  const float* log_q;
  int32_t count, block, blocks;
  bool rows;
};

template <int kN>
__device__ void fill(const Vectors& v, int32_t block, float scale) {
  auto& c = reinterpret_cast<Corrections<kN>*>(v.to)[block];
  const int32_t n = threadIdx.x, at = block * kN + n;
  const bool inside = n < kN && at < v.count;
  const int64_t id = inside && v.ids ? v.ids[at] : 0;
  const auto high = static_cast<uint32_t>(static_cast<uint64_t>(id) >> 32);
  const auto first =
      v.ids ? static_cast<uint32_t>(static_cast<uint64_t>(v.ids[block * kN]) >> 32) : 0;
  __shared__ uint32_t seen[2 * kN];
  for (int i = n; i < 2 * kN; i += blockDim.x) seen[i] = 0;
  const int uniform = __syncthreads_and(!inside || high == first);
  if (inside && v.ids) {
    const uint32_t bit = Corrections<kN>::bit_of(static_cast<uint32_t>(id), high);
    atomicOr(seen + bit / 32, 1u << bit % 32);
  }
  __syncthreads();
  for (int i = n; i < 2 * kN; i += blockDim.x) c.seen[i] = seen[i];
  if (n == 0) c.high = first, c.uniform = uniform, c.inside = min(kN, v.count - block * kN);
  if (n >= kN) return;
  if (!v.rows)
    c.start[n] = !inside ? -INFINITY : v.log_q ? -v.log_q[at] / scale : 0;
  else if (!inside)
    c.start[n] = -INFINITY;
  c.target[n] = inside && v.target ? static_cast<int32_t>(v.target[at]) : -1;
  c.low[n] = static_cast<uint32_t>(id);
  c.id_high[n] = high;
}

/// A CTA a block, of columns and then of rows.
__global__ void __launch_bounds__(128) correct(Vectors columns, Vectors rows, float scale) {
  const bool first = static_cast<int32_t>(blockIdx.x) < columns.blocks;
  const Vectors& v = first ? columns : rows;
  const auto block = static_cast<int32_t>(blockIdx.x) - (first ? 0 : columns.blocks);
  v.block == 64 ? fill<64>(v, block, scale) : fill<128>(v, block, scale);
}

/// out = the sum of the splits' parts, in order. Four numbers a thread.
template <class T>
__global__ void __launch_bounds__(256)
    add_splits(const float4* sums, int32_t splits, int64_t fours, T* out) {
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i >= fours) return;
  float4 total{};
#pragma unroll 8
  for (int32_t s = 0; s < splits; ++s) {
    const float4 x = __ldcs(sums + s * fours + i);
    total.x += x.x, total.y += x.y, total.z += x.z, total.w += x.w;
  }
  const float x[4] = {total.x, total.y, total.z, total.w};
  if constexpr (sizeof(T) == 4) {
    store_vector(out + 4 * i, x);
  } else {
    const auto bits = [&](int k) { return uint32_t{from_float<T>(x[k]).bits}; };
    reinterpret_cast<uint2*>(out)[i] = {bits(0) | bits(1) << 16, bits(2) | bits(3) << 16};
  }
}

void correct_all(const SoftmaxLossSm90& p, const Workspace& w) {
  char* const workspace = static_cast<char*>(p.workspace);
  const int columns = columns_of(p.width);
  const bool hits = p.column_id && p.row_id;
  const PassPlan rows = rows_plan(p), items = items_plan(p);
  const Vectors c{workspace + w.columns, hits ? p.column_id : nullptr, nullptr,     p.log_q,
                  int32_t(p.classes),    rows_shape(columns).block,    rows.blocks, false};
  const Vectors r{
      workspace + w.rows,         hits ? p.row_id : nullptr,    p.target, nullptr, int32_t(p.rows),
      items_shape(columns).block, p.d_items ? items.blocks : 0, true};
  correct<<<c.blocks + r.blocks, 128, 0, stream_of(p.stream)>>>(c, r, p.scale);
  check_launch("corrections of the softmax loss");
}

void add_all(const SoftmaxLossSm90& p, const Workspace& w, int32_t splits) {
  const auto* sums = reinterpret_cast<const float4*>(static_cast<char*>(p.workspace) + w.sums);
  const int64_t fours = p.classes * p.width / 4;
  with_element(p.items_element, [&](auto zero) {
    using T = decltype(zero);
    add_splits<T>
        <<<static_cast<unsigned>(divide_up(fours, int64_t{256})), 256, 0, stream_of(p.stream)>>>(
            sums, splits, fours, static_cast<T*>(p.d_items));
  });
  check_launch("sums of the softmax loss");
}

}  // namespace
}  // namespace softmax_sm90

const char* softmax_loss_sm90_refuses(const SoftmaxLossSm90& p) {
  const auto aligned = [](const void* x) { return reinterpret_cast<uintptr_t>(x) % 16 == 0; };
  constexpr int64_t kMost = int64_t{1} << 30;
  if (p.rows == 0 || p.classes == 0) return "nothing to do";
  if (p.rows > kMost || p.classes > kMost) return "more than 2^30 rows or items";
  if (p.element == Element::kFloat32) return "not a 16-bit type";
  if (p.items_element != p.element && p.items_element != Element::kFloat32)
    return "gradients of items in another 16-bit type";
  if (p.d_items && !p.d_h) return "gradients of items alone";
  if (p.width < 8 || p.width > 256 || p.width % 8 != 0)
    return "a width that is not a multiple of 8 up to 256";
  if (!(p.scale > 0)) return "a scale that is not above 0";
  if (!aligned(p.h) || !aligned(p.items) || !aligned(p.d_h) || !aligned(p.d_items))
    return "rows that do not start at multiples of 16 bytes";
  return nullptr;
}

int64_t softmax_loss_sm90_workspace(const SoftmaxLossSm90& p) {
  return softmax_sm90::workspace_of(p).end;
}

void softmax_loss_sm90(const SoftmaxLossSm90& p) {
  using namespace softmax_sm90;
  constexpr Passes* kPasses[2][3] = {{passes_bf16_d64, passes_bf16_d128, passes_bf16_d256},
                                     {passes_fp16_d64, passes_fp16_d128, passes_fp16_d256}};
  const Workspace w = workspace_of(p);
  correct_all(p, w);
  kPasses[p.element == Element::kFloat16][columns_of(p.width) / 128](p);
  if (const int32_t splits = items_plan(p).splits; p.d_items && splits > 1) add_all(p, w, splits);
}

}  // namespace tautline::kernels
