// rope: rotary positions on a packed projection.
#include "tautline/kernels/rope.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tautline/base/error.h"
#include "tautline/ops/on_its_device.h"
#include "tautline/ops/ops.h"
#include "tautline/ops/rope.h"
#include "tautline/ops/support.h"

namespace tautline::ops {
namespace {}  // namespace

void turn_heads(const Tensor& in, const Tensor& out, const Tensor& position, double base,
                bool backward) {
  kernels::Rope p;
  p.in = in.const_data_ptr();
  p.out = out.mutable_data_ptr();
  p.in_token = in.stride(0);
  p.out_token = out.stride(0);
  p.with_v = out.size(1) == 3;
  p.position = position.const_data_ptr<int64_t>();
  p.tokens = in.size(0);
  p.heads = in.size(2);
  p.head_dim = in.size(3);
  p.base = base;
  p.backward = backward;
  p.element = element_of(in);
  p.stream = stream_of(in);
  if (in.numel() == 0) return;
  if (in.is_cpu()) {
    // A range keeps a table of angles, so ranges are long.
    parallel(p.tokens, 64, [&](int64_t i, int64_t j) { kernels::rope_cpu(p, i, j); });
  } else {
    if constexpr (kCudaBuild) kernels::rope_cuda(p);
  }
}

void check_rope(const Tensor& qkv, const Tensor& position, std::string_view name) {
  if (qkv.dim() != 4 || qkv.size(1) != 3 || qkv.size(3) % 2 != 0)
    throw user_error(name, ": qkv ", qkv.sizes(), " is not [T, 3, H, D] with an even D");
  if (position.dim() != 1 || position.size(0) != qkv.size(0))
    throw user_error(name, ": ", position.sizes(), " positions for ", qkv.size(0), " tokens");
}

namespace {

Tensor rotate(const Tensor& qkv, const Tensor& position, double base, bool backward) {
  check_rope(qkv, position, "rope");
  const Tensor in = readable(qkv), positions = int64_vector(position, qkv, "position");
  Tensor out = at::empty(in.sizes(), in.options());
  turn_heads(in, out, positions, base, backward);
  return out.to(qkv.scalar_type());
}

Tensor rotate_meta(const Tensor& qkv, const Tensor&, double, bool) {
  return at::empty_symint(qkv.sym_sizes(), qkv.options());
}

Tensor call_rotate(const Tensor& qkv, const Tensor& position, double base, bool backward) {
  static const auto op = find_operator<decltype(rotate)>("tautline::rope_rotate");
  return op.call(qkv, position, base, backward);
}

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& qkv,
                        const Tensor& position, double base) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({position});
    ctx->saved_data["base"] = base;
    return call_rotate(qkv, position, base, false);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const double base = ctx->saved_data["base"].toDouble();
    return {call_rotate(gradients[0], saved[0], base, true), Tensor(), Tensor()};
  }
};

Tensor rope_plain(const Tensor& qkv, const Tensor& position, double base) {
  return call_rotate(qkv, position, base, false);
}

}  // namespace

Tensor rope(const Tensor& qkv, const Tensor& position, double base) {
  return RopeFunction::apply(qkv, position, base);
}

TORCH_LIBRARY_FRAGMENT(tautline, m) {
  m.def("rope(Tensor qkv, Tensor position, float base) -> Tensor");
  m.def("rope_rotate(Tensor qkv, Tensor position, float base, bool backward) -> Tensor");
}
TORCH_LIBRARY_IMPL(tautline, CPU, m) { m.impl("rope_rotate", rotate); }
TORCH_LIBRARY_IMPL(tautline, CUDA, m) { m.impl("rope_rotate", on_its_device<rotate>); }
TORCH_LIBRARY_IMPL(tautline, Meta, m) { m.impl("rope_rotate", rotate_meta); }
TORCH_LIBRARY_IMPL(tautline, CompositeExplicitAutograd, m) { m.impl("rope", rope_plain); }
TORCH_LIBRARY_IMPL(tautline, Autograd, m) { m.impl("rope", rope); }

}  // namespace tautline::ops
