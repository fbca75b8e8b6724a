#include "tautline/models/parameters.h"

#include <algorithm>
#include <cmath>

#include "tautline/base/error.h"

namespace tautline::models {
namespace {

using dense::Initial;
using dense::ParameterSpec;
using Position = BackboneConfig::Position;

constexpr double kEmbeddingStd = 0.02;  // positions and time gaps, as the tables' default

class Specs {
 public:
  void linear(const std::string& name, int64_t out, int64_t in, bool bias) {
    const Initial uniform{Initial::Kind::kUniform, 1 / std::sqrt(static_cast<double>(in))};
    list_.push_back({name + ".weight", {out, in}, uniform, true});
    if (bias) list_.push_back({name + ".bias", {out}, uniform, false});
  }
  void norm(const std::string& name, const BackboneConfig& backbone) {
    list_.push_back({name + ".weight", {backbone.width}, {Initial::Kind::kConstant, 1}, false});
    if (backbone.norm == BackboneConfig::Norm::kLayer) {
      list_.push_back({name + ".bias", {backbone.width}, {Initial::Kind::kConstant, 0}, false});
    }
  }
  void embedding(const std::string& name, int64_t rows, int64_t width) {
    list_.push_back(
        {name + ".weight", {rows, width}, {Initial::Kind::kNormal, kEmbeddingStd}, true});
  }
  std::vector<ParameterSpec> take() { return std::move(list_); }

 private:
  std::vector<ParameterSpec> list_;
};

bool has(const BackboneConfig& backbone, Position position) {
  return std::count(backbone.position.begin(), backbone.position.end(), position) > 0;
}

void check_head(const ModelConfig& model, const std::string& name, const HeadConfig& head) {
  const bool binary = head.loss == HeadConfig::Loss::kBinary;
  if (binary && head.label.empty()) {
    throw user_error("heads.", name, ": a binary head needs `label`, the column that holds it");
  }
  if (!binary && !model.tables.contains(head.table)) {
    throw user_error("heads.", name, ".table: '", head.table, "' is not one of the model's tables");
  }
  if (!binary && !model.backbone.causal) {
    throw user_error("heads.", name,
                     ": next item needs backbone.causal: true, because attention "
                     "that sees the future is shown the very item it should predict");
  }
  if (!binary && model.tables.at(head.table).hash_ways > 0 &&
      head.loss == HeadConfig::Loss::kFullSoftmax) {
    throw user_error("heads.", name, ": full_softmax needs a table with direct ids, and '",
                     head.table, "' is hashed; use sampled_softmax");
  }
  if (binary && !head.table.empty() && !model.tables.contains(head.table)) {
    throw user_error("heads.", name, ".table: '", head.table, "' is not one of the model's tables");
  }
  if (head.temperature <= 0) {
    throw user_error("heads.", name, ".temperature: ", head.temperature, " is not above 0");
  }
}

}  // namespace

int64_t mlp_width(const BackboneConfig& backbone) {
  if (backbone.mlp_width > 0) return backbone.mlp_width;
  if (backbone.mlp == BackboneConfig::Mlp::kGelu) return 4 * backbone.width;
  return std::max<int64_t>(64, backbone.width * 8 / 3 / 64 * 64);
}

int64_t input_width(const ModelConfig& model) {
  int64_t width = 0;
  for (const FeatureConfig& feature : model.features) width += model.tables.at(feature.table).dim;
  return width;
}

int64_t output_width(const ModelConfig& model) {
  for (const auto& [name, head] : model.heads) {
    if (head.loss != HeadConfig::Loss::kBinary) return model.tables.at(head.table).dim;
  }
  return model.backbone.width;
}

int64_t max_length(const ModelConfig& model) {
  int64_t longest = 0;
  for (const FeatureConfig& feature : model.features) {
    if (feature.kind == FeatureConfig::Kind::kSequence) {
      longest = std::max(longest, feature.max_length);
    }
  }
  return longest;
}

std::vector<ParameterSpec> parameter_specs(const ModelConfig& model) {
  const BackboneConfig& b = model.backbone;
  Specs specs;
  if (input_width(model) != b.width) specs.linear("input", b.width, input_width(model), b.bias);
  if (has(b, Position::kLearned)) specs.embedding("position", max_length(model), b.width);
  if (has(b, Position::kTimeGap)) specs.embedding("time_gap", b.time_gap_buckets, b.width);
  const int64_t inner = mlp_width(b);
  for (int64_t i = 0; i < b.layers; ++i) {
    const std::string layer = "layer." + std::to_string(i);
    specs.norm(layer + ".attention.norm", b);
    specs.linear(layer + ".attention.qkv", 3 * b.width, b.width, b.bias);
    specs.linear(layer + ".attention.out", b.width, b.width, b.bias);
    specs.norm(layer + ".mlp.norm", b);
    const bool gated = b.mlp == BackboneConfig::Mlp::kSwiglu;
    specs.linear(layer + ".mlp.in", gated ? 2 * inner : inner, b.width, b.bias);
    specs.linear(layer + ".mlp.out", b.width, inner, b.bias);
  }
  specs.norm("norm", b);
  if (output_width(model) != b.width) specs.linear("output", output_width(model), b.width, false);
  for (const auto& [name, head] : model.heads) {
    if (head.loss != HeadConfig::Loss::kBinary) continue;
    specs.linear("head." + name, 1, b.width, true);
    if (!head.table.empty()) {
      specs.linear("head." + name + ".candidate", model.tables.at(head.table).dim, b.width, false);
    }
  }
  return specs.take();
}

void check_model(const ModelConfig& model) {
  const BackboneConfig& b = model.backbone;
  if (max_length(model) <= 0) {
    throw user_error("features: the model needs a sequence feature with max_length above 0");
  }
  for (const FeatureConfig& feature : model.features) {
    if (!model.tables.contains(feature.table)) {
      throw user_error("features: '", feature.name, "' names the table '", feature.table,
                       "', which is not one of the model's tables");
    }
  }
  if (model.heads.empty()) throw user_error("heads: the model needs at least one head");
  int64_t next_item_heads = 0;
  for (const auto& [name, head] : model.heads) {
    check_head(model, name, head);
    next_item_heads += head.loss != HeadConfig::Loss::kBinary;
  }
  if (next_item_heads > 1) throw user_error("heads: more than one next-item head");
  if (b.heads <= 0 || b.width % b.heads != 0) {
    throw user_error("backbone: width ", b.width, " is not a multiple of heads ", b.heads);
  }
  if (has(b, Position::kRope) && (b.width / b.heads) % 2 != 0) {
    throw user_error("backbone: rope needs an even width per head, not ", b.width / b.heads);
  }
  if (b.dropout < 0 || b.dropout >= 1) {
    throw user_error("backbone.dropout: ", b.dropout, " is not in [0, 1)");
  }
}

}  // namespace tautline::models
