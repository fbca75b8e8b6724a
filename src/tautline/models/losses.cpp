#include "tautline/models/losses.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "tautline/base/error.h"
#include "tautline/ops/ops.h"

namespace tautline::models {
namespace {

using Reduction = comm::Communicator::Reduction;

/// [N, ...] -> [P, ...] with `value` behind.
at::Tensor pad_rows(const at::Tensor& x, int64_t rows, double value) {
  if (x.size(0) == rows) return x.contiguous();
  std::vector<int64_t> pad(static_cast<size_t>(2 * x.dim()), 0);
  pad.back() = rows - x.size(0);
  return at::constant_pad_nd(x, pad, value);
}

at::Tensor gather(comm::Communicator communicator, const at::Tensor& x, const std::string& name) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] *= communicator.size();
  at::Tensor all = at::empty(sizes, x.options());
  communicator.all_gather(all, x, name).wait();
  return all;
}

/// Gradient of the whole class_rows(), zero so far, and a leaf over the classes that adds into it.
at::Tensor class_leaf(const ClassShard& shard, Loss& loss) {
  loss.class_gradient = at::zeros({shard.share, shard.rows.size(1)}, shard.rows.options());
  at::Tensor leaf = shard.rows.detach();
  leaf.set_requires_grad(true);
  leaf.mutable_grad() = loss.class_gradient.narrow(0, shard.skipped, shard.rows.size(0));
  return leaf;
}

/// What all ranks must know of each other's targets, W P rows.
struct Targets {
  at::Tensor id;         // [W P] item, -1: padding
  ops::Repeats repeats;  // of own classes
};

Targets gather_targets(const LossContext& context, const Inputs& inputs, const ClassShard& shard) {
  comm::Communicator communicator = context.communicator;
  const int64_t padded = inputs.most_tokens;
  if (!inputs.repeat_id.defined()) {
    return {gather(communicator, pad_rows(inputs.target_id, padded, -1), "softmax.target"), {}};
  }
  // A rank has at most as many distinct items as tokens, so its list starts at its first row.
  const int64_t before = padded * communicator.rank();
  const at::Tensor all = gather(
      communicator,
      at::stack({pad_rows(inputs.target_id, padded, -1), pad_rows(inputs.repeat_id, padded, -1),
                 pad_rows(inputs.repeat_first.add(before), padded, 0),
                 pad_rows(inputs.repeat_last.add(before), padded, 0)},
                1),
      "softmax.target");
  const auto column = [&](int64_t i) { return all.select(1, i).contiguous(); };
  return {column(0),
          {context.model.repeat_bias().detach(), shard.local(column(1)), column(2), column(3)}};
}

/// Sum over this rank's targets, from the whole step's hidden vectors; adds the two roots.
at::Tensor sharded_softmax(const LossContext& context, const HeadConfig& head, const Inputs& inputs,
                           const at::Tensor& h_in, const at::Tensor& items, const ClassShard& shard,
                           double scale, Loss& loss) {
  const at::Tensor h = head.normalize ? ops::l2_normalize(h_in) : h_in;
  const at::Tensor rows = head.normalize ? ops::l2_normalize(items) : items;
  const at::NoGradGuard no_grad;
  comm::Communicator communicator = context.communicator;
  const int64_t n = h.size(0), padded = inputs.most_tokens;
  const int64_t before = padded * communicator.rank();

  const at::Tensor h_all = gather(communicator, pad_rows(h.detach(), padded, 0), "softmax.hidden");
  const Targets targets = gather_targets(context, inputs, shard);
  const at::Tensor local = shard.local(targets.id);
  auto [maximum, sum, target] =
      ops::softmax_statistics(h_all, rows.detach(), local, head.temperature, targets.repeats);

  const at::Tensor own_maximum = maximum.clone();
  communicator.all_reduce(maximum, Reduction::kMax, "softmax.maximum").wait();
  at::Tensor parts = at::empty({2, maximum.size(0)}, maximum.options());
  parts[0].copy_(sum.mul(own_maximum.sub(maximum).exp_()));
  parts[1].copy_(target);
  communicator.all_reduce(parts, Reduction::kSum, "softmax.sum").wait();
  at::Tensor lse = parts[0].log().add_(maximum);
  const at::Tensor loss_sum = lse.narrow(0, before, n).sub(parts[1].narrow(0, before, n)).sum();

  // exp(x - inf) = 0: padding has no gradient.
  lse = at::where(targets.id.lt(0), std::numeric_limits<float>::infinity(), lse);
  auto [d_h_all, d_rows, d_bias] = ops::softmax_gradient(h_all, rows.detach(), lse, local,
                                                         head.temperature, scale, targets.repeats);
  // Each rank's parts go to it and are added there in order of rank: the same bits every time.
  const std::vector<int64_t> splits(static_cast<size_t>(communicator.size()), padded);
  at::Tensor parts_of_d_h = at::empty_like(d_h_all);
  communicator.all_to_all_rows(parts_of_d_h, d_h_all, splits, splits, "softmax.gradient").wait();
  const at::Tensor d_h = parts_of_d_h.view({communicator.size(), padded, h.size(1)}).sum(0);
  loss.roots.insert(loss.roots.end(), {h, rows});
  loss.gradients.insert(loss.gradients.end(), {d_h.narrow(0, 0, n).to(h.scalar_type()), d_rows});
  if (targets.repeats.defined()) {
    loss.roots.push_back(context.model.repeat_bias());
    loss.gradients.push_back(d_bias);
  }
  return loss_sum;
}

at::Tensor sampled_softmax(const LossContext& context, const HeadConfig& head, const Inputs& inputs,
                           const Rows& rows, const at::Tensor& h) {
  const at::Tensor& table = rows.at(head.table);
  const at::Tensor positive = table.index_select(0, inputs.target_row);
  const at::Tensor negative = table.narrow(0, inputs.negative_row, head.negatives);
  // Uniform over the classes: the expected count of a class among the negatives is the same for
  // all.
  ops::OptionalTensor log_q;
  if (head.log_q) {
    const double expected =
        static_cast<double>(head.negatives) / static_cast<double>(context.classes);
    log_q = at::full({head.negatives}, std::log(expected), table.options().requires_grad(false));
  }
  return ops::sampled_softmax(h, positive, negative, inputs.target_id, inputs.negative_id,
                              std::nullopt, log_q, head.temperature, head.normalize,
                              /*remove_hits=*/true);
}

}  // namespace

at::Tensor ClassShard::local(const at::Tensor& id) const {
  const at::Tensor offset = id.sub(first);
  const at::Tensor row = offset.div(stride, "floor");
  const at::Tensor here =
      row.mul(stride).eq(offset).logical_and(row.ge(0)).logical_and(row.lt(rows.size(0)));
  return at::where(here, row, -1);
}

ClassShard class_shard(const embedding::ShardedTable& table, int64_t classes) {
  const at::Tensor all = table.class_rows();
  ClassShard shard;
  shard.stride = table.class_stride();
  shard.share = all.size(0);
  shard.skipped = table.class_first() == 0 && shard.share > 0 ? 1 : 0;
  shard.first = table.class_first() + shard.skipped * shard.stride;
  const int64_t last = classes < shard.first ? 0 : (classes - shard.first) / shard.stride + 1;
  shard.rows = all.narrow(0, shard.skipped, std::min(last, shard.share - shard.skipped));
  return shard;
}

Loss step_loss(const LossContext& context, const Inputs& inputs, const Rows& rows,
               const at::Tensor& hidden) {
  Loss loss;
  const ModelConfig& model = context.model.config();
  const double count = static_cast<double>(std::max<int64_t>(1, inputs.global_targets));
  for (const auto& [name, head] : model.heads) {
    const double scale = head.weight / count;
    at::Tensor sum;
    bool is_root = true;
    if (head.loss == HeadConfig::Loss::kBinary) {
      at::Tensor candidate;
      if (!head.table.empty()) {
        candidate = rows.at(head.table).index_select(0, inputs.target_row);
      }
      sum = ops::binary_loss(context.model.logits(name, hidden, candidate), inputs.label.at(name));
    } else if (head.loss == HeadConfig::Loss::kSampledSoftmax) {
      sum = sampled_softmax(context, head, inputs, rows, context.model.output(hidden));
    } else {
      const ClassShard shard = class_shard(*context.class_table, context.classes);
      const at::Tensor items = class_leaf(shard, loss);
      const at::Tensor h = context.model.output(hidden);
      is_root = context.communicator.size() == 1;
      ops::Repeats repeats;
      if (is_root && head.repeat_bias)
        repeats = {context.model.repeat_bias(), shard.local(inputs.repeat_id), inputs.repeat_first,
                   inputs.repeat_last};
      sum = is_root ? ops::full_softmax(h, items, shard.local(inputs.target_id), head.temperature,
                                        head.normalize, repeats)
                    : sharded_softmax(context, head, inputs, h, items, shard, scale, loss);
    }
    if (is_root) {
      loss.roots.push_back(sum);
      loss.gradients.push_back(at::full({}, scale, sum.options().requires_grad(false)));
    }
    const at::Tensor part = sum.detach().mul(scale);
    loss.value = loss.value.defined() ? loss.value.add(part) : part;
  }
  return loss;
}

}  // namespace tautline::models
