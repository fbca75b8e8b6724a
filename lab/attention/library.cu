// The kernels as the library calls them, for check_forward.cu.
#include "tautline/kernels/attention_sm90/forward.h"

#include "variants.h"

using namespace tautline::kernels;

namespace {

void softmax(const sm90::Forward& f) {
  JaggedAttention p;
  static_cast<AttentionProblem&>(p) = f.p;
  p.scale = f.numbers.scale / 1.4426950408889634;
  p.lse = f.lse;
  jagged_attention_forward_sm90(p, f.order);
}
template <int kActivation, bool kFast>
void pointwise(const sm90::Forward& f) {
  Gdpa p;
  static_cast<AttentionProblem&>(p) = f.p;
  p.activation = static_cast<ScoreActivation>(kActivation);
  p.alpha = f.numbers.scale;
  p.beta = f.numbers.finish;
  gdpa_forward_sm90(p, f.order, kFast);
}

int register_all() {
  for (const bool half : {false, true})
    for (const int dim : {64, 128}) {
      const std::string type = std::string(half ? " fp16 " : " bf16 ") + std::to_string(dim);
      const int groups = dim == 128 ? 3 : 4;
      const auto add = [&](const std::string& name, int activation, auto* launch) {
        Register({"lib " + name + type, dim, activation < 0, activation, half, 128 * groups,
                  64 * groups, 64, launch});
      };
      add("softmax", -1, softmax);
      add("identity", 0, pointwise<0, false>);
      add("relu", 1, pointwise<1, false>);
      add("relu2", 2, pointwise<2, false>);
      add("silu", 3, pointwise<3, false>);
      add("silu fast", 3, pointwise<3, true>);
      add("gelu", 4, pointwise<4, false>);
      add("gelu tanh", 5, pointwise<5, false>);
      add("gelu tanh fast", 5, pointwise<5, true>);
      add("leaky", 6, pointwise<6, false>);
      add("hardswish", 7, pointwise<7, false>);
    }
  return 0;
}
const int registered = register_all();

}  // namespace
