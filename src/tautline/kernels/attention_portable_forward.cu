#include "tautline/kernels/attention_portable_launch.cuh"

namespace tautline::kernels {
namespace portable {
namespace {

template <class T, int P>
constexpr size_t forward_bytes() {
  using S = Tiles<P>;
  return (S::kRows * P + 2 * S::kOther * P + S::kRows * S::kOther) * sizeof(T) +
         (S::kRows * S::kOther + S::kRows * P) * sizeof(float);
}

template <class T, int P>
__global__ void __launch_bounds__(2 * Tiles<P>::kRows)
    forward_kernel(const Scores a, int64_t tiles, int64_t tasks) {
  using S = Tiles<P>;
  constexpr int kColumns = S::kOther, kHalf = kColumns / 2;
  Shared shared{shared_memory};
  T* q = shared.take<T>(S::kRows * P);
  T* k = shared.take<T>(kColumns * P);
  T* v = shared.take<T>(kColumns * P);
  T* weight = shared.take<T>(S::kRows * kColumns);
  float* score = shared.take<float>(S::kRows * kColumns);
  float* o = shared.take<float>(S::kRows * P);
  const AttentionProblem& p = a.p;
  const Lane lane;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const Place at = place_of(task, tiles, p.heads);
    const Sequence s = sequence_of(p, at.sequence);
    const int64_t begin = at.tile * S::kRows, kv_head = at.head / (p.heads / p.kv_heads);
    if (begin >= s.nq) continue;
    const int64_t count = min(static_cast<int64_t>(S::kRows), s.nq - begin), i = begin + lane.row;
    __syncthreads();
    load_tile<T, P>(p.q, s.q + begin, at.head, count, S::kRows, p.head_dim, q);
    for (int x = threadIdx.x; x < S::kRows * P; x += blockDim.x) o[x] = 0.0f;
    float max = -INFINITY, sum = 0.0f;  // sum: of this lane's columns
    const KeyRange range = key_tiles(p, s, begin, begin + count, kColumns);
    for (int64_t tile = range.first; tile < range.last; ++tile) {
      const int64_t first = tile * kColumns, keys = s.nk - first;
      __syncthreads();
      load_tile<T, P>(p.k, s.k + first, kv_head, keys, kColumns, p.head_dim, k);
      load_tile<T, P>(p.v, s.k + first, kv_head, keys, kColumns, p.value_dim, v);
      __syncthreads();
      product_transposed<T, P>(q + lane.warp * kStep * P, k, kColumns,
                               score + lane.warp * kStep * kColumns);
      __syncwarp();
      float* line = score + lane.row * kColumns + lane.half * kHalf;
      T* out = weight + lane.row * kColumns + lane.half * kHalf;
      float top = -INFINITY;
      for (int c = 0; c < kHalf; ++c) {
        const int64_t j = first + lane.half * kHalf + c;
        const bool seen = sees(p, s, i, j);
        const float x = seen ? line[c] * a.scale + bias_of(p, s, at.head, i, j) : -INFINITY;
        line[c] = x;
        top = fmaxf(top, x);
        if (!a.softmax) out[c] = from_float<T>(seen ? activate(a.activation, x).value : 0.0f);
      }
      if (a.softmax) {
        const float new_max = fmaxf(max, pair_max(top));
        const bool nothing = new_max == -INFINITY;
        const float shrink = max == -INFINITY ? 1.0f : __expf(max - new_max);
        sum *= shrink;
        for (int c = 0; c < kHalf; ++c) {
          const float e = nothing ? 0.0f : __expf(line[c] - new_max);
          sum += e;
          out[c] = from_float<T>(e);
        }
        if (shrink != 1.0f)
          for (int d = lane.half; d < P; d += 2) o[lane.row * P + d] *= shrink;
        max = new_max;
      }
      __syncwarp();
      add_product<T, P>(weight + lane.warp * kStep * kColumns, v, kColumns,
                        o + lane.warp * kStep * P);
      __syncwarp();
    }
    __syncthreads();
    sum = pair_sum(sum);
    if (i >= s.nq) continue;
    const float factor = !a.softmax ? a.beta : sum > 0.0f ? 1.0f / sum : 0.0f;
    T* row = static_cast<T*>(p.o.data) + (s.row + i) * p.o.token_stride + at.head * p.o.head_stride;
    for (int64_t d = lane.half; d < p.value_dim; d += 2)
      row[d] = from_float<T>(o[lane.row * P + d] * factor);
    if (a.softmax && lane.half == 0)
      a.lse[at.head * p.rows + s.row + i] = sum > 0.0f ? max + logf(sum) : -INFINITY;
  }
}

void forward(const Scores& a) {
  with_shape(a.p, [&]<class T, int P>(T, std::integral_constant<int, P>) {
    using S = Tiles<P>;
    const int64_t tiles = divide_up<int64_t>(a.p.max_q, S::kRows);
    const int64_t tasks = tiles * a.p.heads * a.p.sequences;
    launch("attention forward", forward_kernel<T, P>, tasks, 2 * S::kRows, forward_bytes<T, P>(),
           a.p.stream, a, tiles, tasks);
  });
}

}  // namespace
}  // namespace portable

void jagged_attention_forward_cuda(const JaggedAttention& p) {
  portable::forward(portable::scores_of(p));
}
void gdpa_forward_cuda(const Gdpa& p) { portable::forward(portable::scores_of(p)); }

}  // namespace tautline::kernels
