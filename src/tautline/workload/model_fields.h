// The YAML of a model: every key named once, with what it means, and the checks of the whole.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "tautline/base/config.h"
#include "tautline/workload/model.h"

namespace tautline {

constexpr auto choices(TableOptimizer::Kind*) {
  using Kind = TableOptimizer::Kind;
  return std::array{std::pair{Kind::kSgd, "sgd"},
                    std::pair{Kind::kRowwiseAdagrad, "rowwise_adagrad"},
                    std::pair{Kind::kAdam, "adam"}};
}
constexpr auto choices(FeatureConfig::Kind*) {
  return std::array{std::pair{FeatureConfig::Kind::kSequence, "sequence"},
                    std::pair{FeatureConfig::Kind::kPooled, "pooled"}};
}
constexpr auto choices(FeatureConfig::Pooling*) {
  return std::array{std::pair{FeatureConfig::Pooling::kSum, "sum"},
                    std::pair{FeatureConfig::Pooling::kMean, "mean"}};
}
constexpr auto choices(BackboneConfig::Attention*) {
  using Attention = BackboneConfig::Attention;
  return std::array{std::pair{Attention::kSoftmax, "softmax"}, std::pair{Attention::kSilu, "silu"},
                    std::pair{Attention::kGelu, "gelu"}, std::pair{Attention::kBlock, "block"}};
}
constexpr auto choices(BackboneConfig::AttentionBias*) {
  return std::array{std::pair{BackboneConfig::AttentionBias::kPosition, "position"},
                    std::pair{BackboneConfig::AttentionBias::kTime, "time"}};
}
constexpr auto choices(BackboneConfig::Norm*) {
  return std::array{std::pair{BackboneConfig::Norm::kRms, "rms"},
                    std::pair{BackboneConfig::Norm::kLayer, "layer"}};
}
constexpr auto choices(BackboneConfig::Mlp*) {
  return std::array{std::pair{BackboneConfig::Mlp::kSwiglu, "swiglu"},
                    std::pair{BackboneConfig::Mlp::kGelu, "gelu"}};
}
constexpr auto choices(BackboneConfig::Position*) {
  using Position = BackboneConfig::Position;
  return std::array{std::pair{Position::kRope, "rope"}, std::pair{Position::kLearned, "learned"},
                    std::pair{Position::kTimeGap, "time_gap"}};
}
constexpr auto choices(HeadConfig::Loss*) {
  using Loss = HeadConfig::Loss;
  return std::array{std::pair{Loss::kSampledSoftmax, "sampled_softmax"},
                    std::pair{Loss::kFullSoftmax, "full_softmax"},
                    std::pair{Loss::kBinary, "binary"}};
}

template <class V>
void fields(V& v, TableOptimizer& x) {  // under {KIND: ...}, see TableConfig
  v("lr", x.lr, "learning rate of the rows");
  if (x.kind != TableOptimizer::Kind::kSgd) v("eps", x.eps, "added to the denominator");
  if (x.kind == TableOptimizer::Kind::kAdam) {
    v("beta1", x.beta1, "decay of the mean gradient");
    v("beta2", x.beta2, "decay of the mean squared gradient");
  }
  v("weight_decay", x.weight_decay, "decoupled, touched rows only; 0: off");
}

template <class V>
void fields(V& v, TableConfig& x) {
  v("rows", x.rows, "rows; 0: as many as the log's vocabulary has, plus one for unknown");
  v("dim", x.dim, "width of an embedding, over all hash ways");
  v.section("hash", "several hashed sub-tables instead of direct ids", [&](auto& hash) {
    hash("ways", x.hash_ways, "sub-tables of dim / ways, concatenated; 0: direct ids");
  });
  v("init_std", x.init_std, "standard deviation of the initial rows");
  v.keyed("optimizer", x.optimizer, x.optimizer.kind, "how touched rows change");
}

template <class V>
void fields(V& v, FeatureConfig& x) {
  v("name", x.name, "what the model calls the feature");
  v("kind", x.kind, "sequence (one embedding a token) or pooled (one of all events so far)");
  v("table", x.table, "table that embeds it");
  v("column", x.column, "column of the built log; empty: the feature's name");
  if (x.kind == FeatureConfig::Kind::kPooled)
    v("pooling", x.pooling, "how a sample's embeddings become one");
  if (x.kind == FeatureConfig::Kind::kSequence)
    v("max_length", x.max_length, "events of one sample; longer histories are cut into chunks");
}

template <class V>
void fields(V& v, BackboneConfig& x) {
  using Position = BackboneConfig::Position;
  v("layers", x.layers, "transformer layers");
  v("width", x.width, "width of the residual stream");
  v("heads", x.heads, "attention heads; divides width");
  v("mlp_width", x.mlp_width, "0: 4 x width (gelu), 8/3 x width in multiples of 64 (swiglu)");
  v("attention", x.attention, "softmax; silu or gelu of each score; block: softmax in 64 tokens");
  v("attention_bias", x.attention_bias, "learned and added to scores: position, time (distances)");
  if (has_bias(x, BackboneConfig::AttentionBias::kTime))
    v("attention_time_buckets", x.attention_time_buckets, "of the bias by time, two an octave");
  v("causal", x.causal, "a token sees only what came before it");
  v("norm", x.norm, "rms or layer; before attention and before the MLP");
  v("mlp", x.mlp, "swiglu or gelu");
  v("bias", x.bias, "biases in the linear layers");
  v("position", x.position, "any mix of rope, learned, time_gap");
  const auto has = [&](Position p) {
    return std::find(x.position.begin(), x.position.end(), p) != x.position.end();
  };
  if (has(Position::kTimeGap))
    v("time_gap_buckets", x.time_gap_buckets, "log2 buckets of the time since the event before");
  if (has(Position::kRope)) v("rope_base", x.rope_base, "base of the rotary angles");
  v("dropout", x.dropout, "share of activations dropped in training; 0: off");
}

template <class V>
void fields(V& v, HeadConfig& x) {
  v("loss", x.loss, "sampled_softmax or full_softmax (next item), binary (a label)");
  if (x.loss == HeadConfig::Loss::kBinary) {
    v("label", x.label, "column with the label; empty: the head's name");
    v("table", x.table, "table of the candidate item, which the logit then sees; empty: none");
  } else {
    v("table", x.table, "table whose rows are the classes");
    if (x.loss == HeadConfig::Loss::kSampledSoftmax) {
      v("negatives", x.negatives, "classes drawn a step, shared by all its targets");
      v("log_q", x.log_q, "subtract the log of a candidate's sampling probability");
    }
    v("normalize", x.normalize, "L2-normalise outputs and classes before their product");
    v("temperature", x.temperature, "divides the logits");
    if (x.loss == HeadConfig::Loss::kFullSoftmax)
      v("repeat_bias", x.repeat_bias, "learn one number for the scores of items already seen");
  }
  v("weight", x.weight, "of this head's loss in the sum");
}

template <class V>
void fields(V& v, ModelConfig& x) {
  v("name", x.name, "what plans and reports call the model");
  v("features", x.features, "what a token or a sample carries");
  v("tables", x.tables, "embedding tables by name");
  v("backbone", x.backbone, "the sequence transformer");
  v("heads", x.heads, "next_item, and tasks by name");
}

/// Errors: what no single key can know (a table that is named but missing, heads that do not divide
/// the width, a next-item head on attention that sees the future, ...).
void validate(const ModelConfig& model, const Provenance& at = {});

/// Tokens of a sample at most: the longest of the sequence features.
int64_t sample_length(const ModelConfig& model);

/// Entries of a head's bias by position: distances into the past, and into the future where
/// attention sees that.
int64_t bias_distances(const ModelConfig& model);

/// Width of the MLP after its default is filled in (BackboneConfig::mlp_width).
int64_t mlp_width(const BackboneConfig& backbone);

}  // namespace tautline
