#include "tautline/models/parameters.h"

#include <algorithm>
#include <cmath>

#include "tautline/workload/model_fields.h"

namespace tautline::models {
namespace {

using dense::Initial;
using dense::ParameterSpec;
using Position = BackboneConfig::Position;

constexpr double kEmbeddingStd = 0.02;  // positions, time gaps, biases; as the tables' default

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
  void number(const std::string& name) {
    list_.push_back({name, {1}, {Initial::Kind::kConstant, 0}, false});
  }
  std::vector<ParameterSpec> take() { return std::move(list_); }

 private:
  std::vector<ParameterSpec> list_;
};

bool has(const BackboneConfig& backbone, Position position) {
  return std::count(backbone.position.begin(), backbone.position.end(), position) > 0;
}

}  // namespace

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

std::vector<ParameterSpec> parameter_specs(const ModelConfig& model) {
  const BackboneConfig& b = model.backbone;
  Specs specs;
  if (input_width(model) != b.width) specs.linear("input", b.width, input_width(model), b.bias);
  if (has(b, Position::kLearned)) specs.embedding("position", sample_length(model), b.width);
  if (has(b, Position::kTimeGap)) specs.embedding("time_gap", b.time_gap_buckets, b.width);
  const int64_t inner = mlp_width(b);
  for (int64_t i = 0; i < b.layers; ++i) {
    const std::string layer = "layer." + std::to_string(i);
    specs.norm(layer + ".attention.norm", b);
    specs.linear(layer + ".attention.qkv", 3 * b.width, b.width, b.bias);
    if (has_bias(b, BackboneConfig::AttentionBias::kPosition))
      specs.embedding(layer + ".attention.position_bias", b.heads, bias_distances(model));
    if (has_bias(b, BackboneConfig::AttentionBias::kTime))
      specs.embedding(layer + ".attention.time_bias", b.heads, b.attention_time_buckets);
    specs.linear(layer + ".attention.out", b.width, b.width, b.bias);
    specs.norm(layer + ".mlp.norm", b);
    const bool gated = b.mlp == BackboneConfig::Mlp::kSwiglu;
    specs.linear(layer + ".mlp.in", gated ? 2 * inner : inner, b.width, b.bias);
    specs.linear(layer + ".mlp.out", b.width, inner, b.bias);
  }
  specs.norm("norm", b);
  if (output_width(model) != b.width) specs.linear("output", output_width(model), b.width, false);
  for (const auto& [name, head] : model.heads) {
    if (head.repeat_bias) specs.number("head." + name + ".repeat_bias");
    if (head.loss != HeadConfig::Loss::kBinary) continue;
    specs.linear("head." + name, 1, b.width, true);
    if (!head.table.empty()) {
      specs.linear("head." + name + ".candidate", model.tables.at(head.table).dim, b.width, false);
    }
  }
  return specs.take();
}

}  // namespace tautline::models
