// Batches for the tests of attention_order.h: those of the benchmark's rows, and drawn ones.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tautline/kernels/attention_order.h"

#include "kernels/attention_cases.h"

namespace tautline::kernels::testing {

struct OrderBatch {
  std::string name;
  int64_t heads;
  AttentionWindow window;
  std::vector<int64_t> lengths;
};

/// Fixed, uniform in [0, L], log-normal with sigma 0.9 clipped to [16, most] and shifted to the mean
/// by its own clipping.
inline std::vector<OrderBatch> benchmark_batches() {
  std::vector<OrderBatch> all;
  Random random(3, RandomUse::kSynthetic);
  for (const int64_t length : {256, 512, 1024, 2048}) {
    std::vector<int64_t> uniform;
    for (int i = 0; i < 1152; ++i)
      uniform.push_back(static_cast<int64_t>(random.below(length + 1)));
    const std::string text = std::to_string(length);
    all.push_back({"L " + text, 4, {}, std::vector<int64_t>(1152, length)});
    all.push_back({"L " + text + " s=.5", 4, {}, uniform});
  }
  const auto log_normal = [&](int64_t sequences, double mean, int64_t most) {
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < sequences; ++i) {
      const double x = std::exp(0.9 * random.normal()) * mean / std::exp(0.405);
      lengths.push_back(std::clamp<int64_t>(std::llround(x), 16, most));
    }
    return lengths;
  };
  all.push_back({"mean 394 causal H=8", 8, kCausal, log_normal(512, 394, 2048)});
  all.push_back({"mean 394 causal H=4", 4, kCausal, log_normal(512, 394, 2048)});
  all.push_back({"mean 841 causal", 4, kCausal, log_normal(256, 841, 4096)});
  all.push_back({"mean 841", 4, {}, log_normal(256, 841, 4096)});
  all.push_back({"mean 2485 causal", 4, kCausal, log_normal(64, 2485, 8192)});
  return all;
}

/// A request and the offsets it points at.
struct OrderCase {
  std::vector<int64_t> q_offsets, k_offsets;
  AttentionOrderRequest request;

  OrderCase(std::vector<int64_t> q, std::vector<int64_t> k) : q_offsets(q), k_offsets(k) {
    request.q_offsets = q_offsets.data();
    request.k_offsets = k_offsets.data();
    request.sequences = static_cast<int64_t>(k_offsets.size()) - 1;
  }
  OrderCase(const OrderCase&) = delete;
  int64_t rows() const {
    return request.pass == AttentionPass::kKeys ? k_offsets.back()
           : request.q_offsets                  ? q_offsets.back()
                                                : request.seeds * request.sequences;
  }
};

inline std::unique_ptr<OrderCase> any_order_case(int64_t most_sequences, int64_t longest) {
  const auto in = drawn;
  std::vector<int64_t> q, k;
  for (int64_t b = in(0, most_sequences); b-- > 0;) {
    q.push_back(in(0, 3) ? in(0, longest) : 0);
    k.push_back(in(0, 3) ? in(0, longest) : 0);
  }
  auto c = std::make_unique<OrderCase>(offsets_of(q), offsets_of(k));
  AttentionOrderRequest& r = c->request;
  if (in(0, 2) == 0) {
    r.q_offsets = nullptr;
    r.seeds = in(1, 20);
  }
  r.window = {in(0, 1) ? -1 : in(0, longest / 2), in(0, 1) ? -1 : in(0, longest / 2)};
  r.pass = in(0, 1) ? AttentionPass::kQueries : AttentionPass::kKeys;
  r.tile = in(1, 16), r.other_tile = in(1, 16), r.group = in(1, 3), r.tile_work = in(0, 2);
  if (r.pass == AttentionPass::kKeys) r.tile_work += 1;
  r.whole = in(0, 1) ? 0 : in(1, longest);
  if (in(0, 2) == 0) r.tile *= 2, r.pair_group = in(1, 16);
  return c;
}

}  // namespace tautline::kernels::testing
