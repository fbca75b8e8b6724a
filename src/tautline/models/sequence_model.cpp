#include "tautline/models/sequence_model.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros_like.h>

#include "tautline/dense/linear.h"
#include "tautline/kernels/block_attention.h"
#include "tautline/models/parameters.h"
#include "tautline/ops/ops.h"
#include "tautline/workload/model_fields.h"

namespace tautline::models {
namespace {

static_assert(kAttentionBlock == kernels::kAttentionBlock);

constexpr double kNormEps = 1e-5;  // torch's default for both norms' layers

/// A pooled feature: at each token the sum or mean over the events of its sample so far, so that no
/// token sees the future. The mean is causal attention in which all scores are equal. rows [T, E].
at::Tensor pool_so_far(const at::Tensor& rows, const Inputs& inputs,
                       FeatureConfig::Pooling pooling) {
  const at::Tensor value = rows.unsqueeze(1);  // one head
  const at::Tensor zero = at::zeros_like(value.detach());
  const at::Tensor mean =
      ops::jagged_attention(zero, zero, value, inputs.offsets, inputs.offsets, inputs.longest,
                            inputs.longest, /*causal=*/true, /*scale=*/1)
          .squeeze(1);
  if (pooling == FeatureConfig::Pooling::kMean) return mean;
  return mean.mul(inputs.position.add(1).unsqueeze(1).to(mean.scalar_type()));
}

}  // namespace

/// One place of the network after another; a place is a number that keys the mask.
struct SequenceModel::Dropout {
  double p;
  int64_t seed, step;
  const Inputs& inputs;
  mutable int64_t site = 0;

  at::Tensor operator()(const at::Tensor& x) const {
    const int64_t here = site++;
    if (p == 0) return x;
    return ops::dropout(x, p, seed, step, here, inputs.sample, inputs.position);
  }
  at::Tensor add(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual) const {
    const int64_t here = site++;
    return ops::dropout_add(x, bias.defined() ? ops::OptionalTensor(bias) : std::nullopt, residual,
                            p, seed, step, here, inputs.sample, inputs.position);
  }
};

SequenceModel::SequenceModel(const ModelConfig& config, const PrecisionPlan& precision,
                             uint64_t seed, at::Device device)
    : config_(config),
      precision_(precision),
      seed_(seed),
      parameters_(parameter_specs(config), seed, device) {
  const BackboneConfig& b = config_.backbone;
  const auto has = [&](BackboneConfig::Position position) {
    return std::count(b.position.begin(), b.position.end(), position) > 0;
  };
  if (input_width(config_) != b.width) input_ = linear("input", b.bias);
  if (has(BackboneConfig::Position::kLearned)) position_ = parameters_["position.weight"];
  if (has(BackboneConfig::Position::kTimeGap)) time_gap_ = parameters_["time_gap.weight"];
  for (int64_t i = 0; i < b.layers; ++i) {
    const std::string name = "layer." + std::to_string(i);
    layers_.push_back({norm(name + ".attention.norm"), norm(name + ".mlp.norm"),
                       linear(name + ".attention.qkv", b.bias),
                       linear(name + ".attention.out", b.bias), linear(name + ".mlp.in", b.bias),
                       linear(name + ".mlp.out", b.bias), bias(name, AttentionBias::kPosition),
                       bias(name, AttentionBias::kTime)});
  }
  norm_ = norm("norm");
  if (output_width(config_) != b.width) output_ = linear("output", false);
}

SequenceModel::Linear SequenceModel::linear(const std::string& name, bool bias) const {
  return {&parameters_.find(name + ".weight"), bias ? parameters_[name + ".bias"] : at::Tensor()};
}

SequenceModel::Norm SequenceModel::norm(const std::string& name) const {
  const bool bias = config_.backbone.norm == BackboneConfig::Norm::kLayer;
  return {parameters_[name + ".weight"], bias ? parameters_[name + ".bias"] : at::Tensor()};
}

at::Tensor SequenceModel::bias(const std::string& layer, AttentionBias kind) const {
  if (!has_bias(config_.backbone, kind)) return {};
  const bool position = kind == AttentionBias::kPosition;
  return parameters_[layer + (position ? ".attention.position_bias" : ".attention.time_bias") +
                     ".weight"];
}

at::Tensor SequenceModel::cast(const at::Tensor& parameter) const {
  if (!parameter.defined() || precision_.compute == PrecisionPlan::Compute::kFp32) return parameter;
  return parameter.to(at::kBFloat16);
}

at::Tensor SequenceModel::multiply(const dense::Parameter& weight, const at::Tensor& x,
                                   const at::Tensor& bias) const {
  return precision_.compute == PrecisionPlan::Compute::kFp32 ? at::linear(x, weight.value, bias)
                                                             : dense::linear_bf16(x, weight, bias);
}

at::Tensor SequenceModel::apply(const Linear& linear, const at::Tensor& x) const {
  return multiply(*linear.weight, x, linear.bias);
}

at::Tensor SequenceModel::apply(const Norm& norm, const at::Tensor& x) const {
  return norm.bias.defined() ? ops::layer_norm(x, norm.weight, norm.bias, kNormEps)
                             : ops::rms_norm(x, norm.weight, kNormEps);
}

/// [T, C] in the compute type.
at::Tensor SequenceModel::embed(const Inputs& inputs, const Rows& rows) const {
  std::vector<at::Tensor> parts;
  for (const FeatureConfig& feature : config_.features) {
    at::Tensor part = rows.at(feature.table);
    if (part.size(0) != inputs.tokens) {
      part = part.narrow(0, inputs.feature_row.at(feature.name), inputs.tokens);
    }
    if (feature.kind == FeatureConfig::Kind::kPooled) {
      part = pool_so_far(cast(part), inputs, feature.pooling);
    }
    parts.push_back(part);
  }
  at::Tensor x = cast(parts.size() == 1 ? parts[0] : at::cat(parts, 1));
  if (input_.weight) x = apply(input_, x);
  if (position_.defined()) x = x.add(cast(at::embedding(position_, inputs.position)));
  if (time_gap_.defined()) x = x.add(cast(at::embedding(time_gap_, inputs.time_gap)));
  return x;
}

/// norm(x) [T, C] -> attention's output before its linear layer, [T, C].
at::Tensor SequenceModel::attention(const Layer& layer, const at::Tensor& x,
                                    const Inputs& inputs) const {
  const BackboneConfig& b = config_.backbone;
  const int64_t d = b.width / b.heads;
  const bool rope =
      std::count(b.position.begin(), b.position.end(), BackboneConfig::Position::kRope) > 0;
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  const at::Tensor qkv = apply(layer.qkv, x).view({inputs.tokens, 3, b.heads, d});
  if (b.attention == BackboneConfig::Attention::kBlock) {  // turns q and k itself
    const std::vector<at::Tensor> p = qkv.unbind(1);
    return ops::block_attention(p[0], p[1], p[2], inputs.offsets, b.causal, scale,
                                rope ? "half_split" : "none", b.rope_base)
        .reshape({inputs.tokens, b.width});
  }
  ops::AttentionOptions options;
  options.causal = b.causal;
  if (inputs.order.defined()) options.order = inputs.order;
  if (layer.position_bias.defined()) {
    const int64_t future = b.causal ? sample_length(config_) - 1 : 0;  // which nobody sees
    options.position_bias = at::constant_pad_nd(layer.position_bias, {future, 0});
  }
  if (layer.time_bias.defined()) {
    options.time_bias = layer.time_bias;
    options.q_time = options.k_time = inputs.time;
  }
  const auto kind = [&] {
    if (b.attention == BackboneConfig::Attention::kSoftmax) return "softmax";
    return b.attention == BackboneConfig::Attention::kSilu ? "silu" : "gelu";
  };
  const bool softmax = b.attention == BackboneConfig::Attention::kSoftmax;
  const ops::OptionalTensor position = rope ? ops::OptionalTensor(inputs.position) : std::nullopt;
  return ops::self_attention(qkv, position, b.rope_base, inputs.offsets, inputs.longest, kind(),
                             scale, softmax ? 1 : 1 / static_cast<double>(sample_length(config_)),
                             options)
      .reshape({inputs.tokens, b.width});
}

/// norm(x) [T, C] -> the inner activations [T, F], after dropout.
at::Tensor SequenceModel::mlp(const Layer& layer, const at::Tensor& x,
                              const Dropout& dropout) const {
  const at::Tensor in = multiply(*layer.mlp_in.weight, x);
  const at::Tensor bias = cast(layer.mlp_in.bias);
  const ops::OptionalTensor b = bias.defined() ? ops::OptionalTensor(bias) : std::nullopt;
  const bool gated = config_.backbone.mlp == BackboneConfig::Mlp::kSwiglu;
  return dropout(gated ? ops::swiglu(in, b) : ops::gelu(in, b));
}

/// s = residual + dropout(linear(x)) and norm(s). Without dropout the addition is part of the norm,
/// and so is the sum of the two gradients of s.
SequenceModel::Normed SequenceModel::add(const Linear& linear, const at::Tensor& x,
                                         const at::Tensor& residual, const Norm& norm,
                                         const Dropout& dropout) const {
  if (dropout.p > 0) {
    const at::Tensor sum = dropout.add(multiply(*linear.weight, x), cast(linear.bias), residual);
    return {sum, apply(norm, sum)};
  }
  ++dropout.site;
  const at::Tensor out = apply(linear, x);
  return norm.bias.defined() ? ops::add_layer_norm(out, residual, norm.weight, norm.bias, kNormEps)
                             : ops::add_rms_norm(out, residual, norm.weight, kNormEps);
}

at::Tensor SequenceModel::hidden(const Inputs& inputs, const Rows& rows,
                                 const ForwardMode& mode) const {
  const Dropout dropout{mode.training ? config_.backbone.dropout : 0.0, static_cast<int64_t>(seed_),
                        mode.step, inputs};
  const auto norm_before = [&](size_t layer) -> const Norm& {
    return layer < layers_.size() ? layers_[layer].attention_norm : norm_;
  };
  at::Tensor x = dropout(embed(inputs, rows));
  at::Tensor normed = apply(norm_before(0), x);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const at::Tensor attended = attention(layer, normed, inputs);
    std::tie(x, normed) = add(layer.attention_out, attended, x, layer.mlp_norm, dropout);
    const at::Tensor inner = mlp(layer, normed, dropout);
    std::tie(x, normed) = add(layer.mlp_out, inner, x, norm_before(i + 1), dropout);
  }
  return inputs.target_token.defined() ? normed.index_select(0, inputs.target_token) : normed;
}

at::Tensor SequenceModel::output(const at::Tensor& hidden) const {
  return output_.weight ? apply(output_, hidden) : hidden;
}

at::Tensor SequenceModel::repeat_bias() const {
  const HeadConfig* head = next_item_head(config_);
  return head && head->repeat_bias ? parameters_["head.next_item.repeat_bias"] : at::Tensor();
}

at::Tensor SequenceModel::logits(const std::string& head, const at::Tensor& hidden,
                                 const at::Tensor& candidate) const {
  at::Tensor x = apply(linear("head." + head, true), hidden).squeeze(1).to(at::kFloat);
  if (!config_.heads.at(head).table.empty()) {
    const at::Tensor query = apply(linear("head." + head + ".candidate", false), hidden);
    x = x.add(query.to(at::kFloat).mul(candidate).sum(1));
  }
  return x;
}

}  // namespace tautline::models
