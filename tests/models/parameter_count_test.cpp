// The FLOP formula counts the parameters that the network really has.
#include <filesystem>
#include <numeric>

#include <gtest/gtest.h>

#include "tautline/models/parameters.h"
#include "tautline/workload/describe.h"
#include "tautline/workload/model_fields.h"

namespace tautline::models {
namespace {

double built(const ModelConfig& model) {
  double total = 0;
  for (const dense::ParameterSpec& spec : parameter_specs(model)) {
    double size = 1;
    for (const int64_t extent : spec.sizes) size *= static_cast<double>(extent);
    total += size;
  }
  return total;
}

TEST(ParameterCount, IsWhatTheWorkloadSays) {
  for (const auto& file :
       std::filesystem::directory_iterator(TAUTLINE_SOURCE_DIR "/configs/models")) {
    const auto model = read_config<ModelConfig>(file.path());
    EXPECT_EQ(dense_parameters(model), built(model)) << file.path();
  }
}

TEST(ParameterCount, OfEveryPart) {
  const auto model = parse_config<ModelConfig>(R"(
features:
  - {name: item, table: item}
  - {name: action, table: action}
tables:
  item: {rows: 100, dim: 24}
  action: {rows: 8, dim: 8}
backbone: {layers: 3, width: 48, heads: 3, norm: layer, bias: true, position: [rope, learned, time_gap]}
heads:
  next_item: {table: item}
  click: {loss: binary}
  like: {loss: binary, table: item}
)",
                                               "m.yaml");
  EXPECT_EQ(dense_parameters(model), built(model));
}

TEST(ParameterCount, OfTheAttentionsBiases) {
  for (const char* causal : {"true", "false"}) {
    const auto model = parse_config<ModelConfig>(R"(
features: [{name: item, table: item, max_length: 30}]
tables: {item: {rows: 100, dim: 48}}
backbone: {layers: 3, width: 48, heads: 3, attention: silu, attention_bias: [position, time], attention_time_buckets: 20, causal: )" +
                                                     std::string(causal) + R"(}
heads: {click: {loss: binary}}
)",
                                                 "m.yaml");
    EXPECT_EQ(dense_parameters(model), built(model));
    ModelConfig without = model;
    without.backbone.attention_bias.clear();
    const int64_t distances = model.backbone.causal ? 30 : 59;
    EXPECT_EQ(built(model) - built(without), 3 * 3 * (distances + 20));
  }
}

}  // namespace
}  // namespace tautline::models
