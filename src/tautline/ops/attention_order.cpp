#include "tautline/ops/attention_order.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "tautline/base/error.h"
#include "tautline/kernels/attention_sm90/backward.h"
#include "tautline/kernels/attention_sm90/forward.h"
#include "tautline/ops/on_its_device.h"

namespace tautline::ops {
namespace {

using kernels::AttentionOrder;
using kernels::AttentionPass;
using kernels::AttentionProblem;

constexpr int64_t kSmallestTile = 64;

/// What the forward (queries) or the backward (keys) of the problem asks the order for.
kernels::AttentionOrderRequest request_of(const AttentionProblem& p, AttentionPass pass) {
  kernels::AttentionOrderRequest r;
  if constexpr (kCudaBuild) {
    if (pass == AttentionPass::kQueries) return kernels::attention_forward_sm90_order(p);
  }
  r.q_offsets = p.q_offsets;
  r.k_offsets = p.k_offsets;
  r.sequences = p.sequences;
  r.seeds = p.q_offsets ? 0 : p.max_q;
  r.window = p.window;
  r.pass = pass;
  if (pass == AttentionPass::kKeys) {
    r.whole = kernels::attention_backward_sm90_whole(p.head_dim, p.value_dim);
    r.group = p.heads / p.kv_heads;
  }
  return r;
}

/// Tiles that the tensor has room for.
template <class Int>
Int room(const Int& rows, const Int& sequences) {
  return rows / kSmallestTile + sequences;
}

/// Rows of the order's tensor, of pairs.
template <class Int>
Int size_of(const Int& q_rows, const Int& k_rows, const Int& sequences, int64_t columns) {
  return room(q_rows, sequences) + room(k_rows, sequences) + 2 + (columns > 64);
}

int64_t rows_of(const AttentionProblem& p, AttentionPass pass) {
  return pass == AttentionPass::kKeys ? p.k_tokens : p.rows;
}

/// First row of the pass's part.
int64_t first_row(const AttentionProblem& p, AttentionPass pass) {
  return pass == AttentionPass::kKeys ? 1 + room(p.rows, p.sequences) : 0;
}

void build(const AttentionProblem& p, AttentionPass pass, int32_t* part, const Tensor& like) {
  kernels::AttentionOrderBuild b{request_of(p, pass)};
  TAUTLINE_INVARIANT(b.tile >= kSmallestTile, "tiles of " << b.tile << " rows");
  b.capacity = kernels::attention_order_capacity(b, rows_of(p, pass));
  const Tensor workspace =
      at::empty({kernels::attention_order_workspace(b.sequences, b.capacity)}, like.options());
  b.count = part;
  b.tiles = part + 2;
  b.workspace = workspace.mutable_data_ptr<int32_t>();
  b.stream = p.stream;
  if constexpr (kCudaBuild) kernels::attention_order_cuda(b);
}

void build_on_host(const AttentionProblem& p, AttentionPass pass, int32_t* part) {
  const auto request = request_of(p, pass);
  const auto items = kernels::attention_order(request);
  part[0] = static_cast<int32_t>(items.size());
  part[1] = static_cast<int32_t>(kernels::made_for(request));
  for (const auto& item : items) {
    part += 2;
    part[0] = item.sequence, part[1] = item.tile;
  }
}

AttentionProblem problem_of(const OptionalTensor& q_offsets, const Tensor& k_offsets,
                            int64_t q_rows, int64_t k_rows, int64_t max_q, int64_t max_k,
                            int64_t heads, int64_t kv_heads, int64_t head_dim, bool causal,
                            int64_t window_left, int64_t window_right) {
  AttentionProblem p;
  if (q_offsets) p.q_offsets = q_offsets->const_data_ptr<int64_t>();
  p.k_offsets = k_offsets.const_data_ptr<int64_t>();
  p.sequences = k_offsets.numel() - 1;
  p.heads = heads;
  p.kv_heads = kv_heads;
  p.head_dim = p.value_dim = head_dim;
  p.rows = q_rows;
  p.k_tokens = k_rows;
  p.max_q = max_q;
  p.max_k = max_k;
  p.window = window_of(causal, window_left, window_right);
  p.element = kernels::Element::kBFloat16;
  return p;
}

Tensor order_forward(const OptionalTensor& q_offsets, const Tensor& k_offsets, int64_t q_rows,
                     int64_t k_rows, int64_t max_q, int64_t max_k, int64_t heads, int64_t kv_heads,
                     int64_t head_dim, bool causal, int64_t window_left, int64_t window_right) {
  const Tensor ko = int64_vector(k_offsets, k_offsets, "k_offsets");
  const OptionalTensor qo =
      q_offsets ? OptionalTensor(int64_vector(*q_offsets, k_offsets, "q_offsets")) : std::nullopt;
  if (kv_heads < 1 || heads % kv_heads != 0 || ko.numel() < 1 || (qo && qo->numel() != ko.numel()))
    throw user_error("attention_order: ", heads, " heads over ", kv_heads, " and offsets ",
                     ko.sizes(), " do not fit together");
  AttentionProblem p = problem_of(qo, ko, q_rows, k_rows, max_q, max_k, heads, kv_heads, head_dim,
                                  causal, window_left, window_right);
  p.stream = stream_of(ko);
  Tensor out = at::empty({size_of(p.rows, p.k_tokens, p.sequences, head_dim), 2},
                         ko.options().dtype(at::kInt));
  if (ko.is_cpu()) {
    if (qo) check_offsets(*qo, q_rows);
    check_offsets(ko, k_rows);
    out.zero_();
  }
  for (const AttentionPass pass : {AttentionPass::kQueries, AttentionPass::kKeys}) {
    int32_t* part = out.mutable_data_ptr<int32_t>() + 2 * first_row(p, pass);
    if (ko.is_cpu()) {
      build_on_host(p, pass, part);
    } else {
      build(p, pass, part, out);
    }
  }
  return out;
}

Tensor order_meta(const OptionalTensor&, const Tensor& k_offsets, c10::SymInt q_rows,
                  c10::SymInt k_rows, c10::SymInt, c10::SymInt, int64_t, int64_t, int64_t head_dim,
                  bool, int64_t, int64_t) {
  const c10::SymInt sequences = k_offsets.sym_size(0) - 1;
  return at::empty_symint({size_of(q_rows, k_rows, sequences, head_dim), 2},
                          k_offsets.options().dtype(at::kInt));
}

}  // namespace

AttentionOrder order_of(const AttentionProblem& p, AttentionPass pass, const OptionalTensor& order,
                        Tensor& memory) {
  int32_t* part = nullptr;
  if (order) {
    const int64_t size =
        size_of(p.rows, p.k_tokens, p.sequences, std::max(p.head_dim, p.value_dim));
    if (order->scalar_type() != at::kInt || !order->is_contiguous() ||
        order->sizes() != at::IntArrayRef({size, 2}))
      throw user_error("attention: order ", order->sizes(),
                       " is not what attention_order makes of this batch, int32 [", size,
                       ", 2] (its head_dim is the wider of keys' and values')");
    part = const_cast<int32_t*>(order->const_data_ptr<int32_t>()) + 2 * first_row(p, pass);
  } else {
    const int64_t tiles = room(rows_of(p, pass), p.sequences);
    memory = at::empty({2 * (1 + tiles)}, at::TensorOptions(at::kInt).device(at::kCUDA));
    part = memory.mutable_data_ptr<int32_t>();
    build(p, pass, part, memory);
  }
  return {part + 2, part};
}

Tensor attention_order(const OptionalTensor& q_offsets, const Tensor& k_offsets, int64_t q_rows,
                       int64_t k_rows, int64_t max_q, int64_t max_k, int64_t heads,
                       int64_t kv_heads, int64_t head_dim, bool causal, int64_t window_left,
                       int64_t window_right) {
  static const auto op = find_operator<decltype(order_meta)>("tautline::attention_order");
  return op.call(q_offsets, k_offsets, q_rows, k_rows, max_q, max_k, heads, kv_heads, head_dim,
                 causal, window_left, window_right);
}

TORCH_LIBRARY_FRAGMENT(tautline, m) {
  m.def(
      "attention_order(Tensor? q_offsets, Tensor k_offsets, SymInt q_rows, SymInt k_rows, "
      "SymInt max_q, SymInt max_k, int heads, int kv_heads, int head_dim, bool causal, "
      "int window_left=-1, int window_right=-1) -> Tensor");
}
TORCH_LIBRARY_IMPL(tautline, CPU, m) { m.impl("attention_order", order_forward); }
TORCH_LIBRARY_IMPL(tautline, CUDA, m) { m.impl("attention_order", on_its_device<order_forward>); }
TORCH_LIBRARY_IMPL(tautline, Meta, m) { m.impl("attention_order", order_meta); }

}  // namespace tautline::ops
