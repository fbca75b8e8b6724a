#include "tautline/workload/model.h"

#include <set>

#include "tautline/base/limits.h"
#include "tautline/workload/model_fields.h"

namespace tautline {
namespace {

std::vector<std::string> table_names(const ModelConfig& model) {
  std::vector<std::string> names;
  for (const auto& [name, table] : model.tables) names.push_back(name);
  return names;
}

void check_table_name(const ModelConfig& model, const std::string& table, const std::string& user,
                      const std::string& where) {
  if (model.tables.contains(table)) return;
  if (table.empty())
    throw user_error(where, user, " names no table; 'table' must be one of ",
                     joined(table_names(model)));
  throw user_error(where, user, " names the table '", table, "', which is not under 'tables'",
                   suggestion(table, table_names(model)));
}

// Beyond anything that is trained, and small enough that their products fit 64 bits.
constexpr int64_t kMostLayers = 10'000, kMostWidth = 1 << 20, kMostMlpWidth = 1 << 24;
constexpr int64_t kMostRows = int64_t{1} << 40, kMostLength = 1 << 24, kMostBuckets = 1 << 16;
constexpr int64_t kMostNegatives = 1 << 24;
constexpr double kMostReal = 1e30;  // of what becomes an FP32 number

void check_features(const ModelConfig& model, const Provenance& at) {
  if (model.features.empty())
    throw user_error(at("features"), "a model needs at least one feature under 'features'");
  std::set<std::string> names;
  bool sequence = false;
  for (size_t i = 0; i < model.features.size(); ++i) {
    const FeatureConfig& feature = model.features[i];
    const std::string path = "features." + std::to_string(i);
    if (feature.name.empty()) throw user_error(at(path), "a feature has no name");
    if (!names.insert(feature.name).second)
      throw user_error(at(path + ".name"), "two features are called '", feature.name, "'");
    check_table_name(model, feature.table, "the feature '" + feature.name + "'",
                     at(path + ".table"));
    if (feature.max_length < 1)
      throw user_error(at(path + ".max_length"), "max_length of the feature '", feature.name,
                       "' must be 1 or more, found ", feature.max_length);
    check_at_most(at, path + ".max_length", feature.max_length, kMostLength);
    sequence = sequence || feature.kind == FeatureConfig::Kind::kSequence;
  }
  if (!sequence)
    throw user_error(at("features"), "at least one feature must be of the kind sequence");
}

void check_tables(const ModelConfig& model, const Provenance& at) {
  for (const auto& [name, table] : model.tables) {
    const std::string path = "tables." + name;
    if (table.rows < 0)
      throw user_error(at(path + ".rows"), "rows of the table '", name, "' must be 0 or more");
    if (table.dim < 1)
      throw user_error(at(path + ".dim"), "dim of the table '", name, "' must be 1 or more");
    check_at_most(at, path + ".rows", table.rows, kMostRows);
    check_at_most(at, path + ".dim", table.dim, kMostWidth);
    if (!(table.init_std >= 0 && table.init_std <= kMostReal))
      throw user_error(at(path + ".init_std"), "init_std of the table '", name,
                       "' must be 0 or more, 1e30 at most, found ", table.init_std);
    if (table.hash_ways < 0)
      throw user_error(at(path + ".hash.ways"), "hash.ways of the table '", name,
                       "' must be 0 (direct ids) or more");
    if (table.hash_ways > 0 && table.dim % table.hash_ways != 0)
      throw user_error(at(path + ".hash.ways"), "hash.ways ", table.hash_ways, " of the table '",
                       name, "' must divide its dim ", table.dim);
    if (table.hash_ways > 0 && table.rows == 0)
      throw user_error(at(path), "the hashed table '", name,
                       "' needs its number of rows; rows: 0 (the vocabulary) is for direct ids");
    const TableOptimizer& optimizer = table.optimizer;
    if (optimizer.lr < 0 || optimizer.eps < 0 || optimizer.weight_decay < 0)
      throw user_error(at(path + ".optimizer"), "lr, eps and weight_decay of the table '", name,
                       "' must be 0 or more");
    if (optimizer.beta1 < 0 || optimizer.beta1 >= 1 || optimizer.beta2 < 0 || optimizer.beta2 >= 1)
      throw user_error(at(path + ".optimizer"), "beta1 and beta2 of the table '", name,
                       "' must be in [0, 1)");
  }
}

/// A list in which order counts for nothing and twice is a slip of the pen.
template <class E>
void check_once(const std::vector<E>& list, const std::string& key, const Provenance& at) {
  for (size_t i = 0; i < list.size(); ++i)
    if (std::find(list.begin(), list.begin() + static_cast<int64_t>(i), list[i]) !=
        list.begin() + static_cast<int64_t>(i))
      throw user_error(at(key + "." + std::to_string(i)), key, " names ", choice_name(list[i]),
                       " twice; leave one of them out");
}

void check_backbone(const ModelConfig& model, const Provenance& at) {
  const BackboneConfig& b = model.backbone;
  const std::pair<const char*, int64_t> positive[] = {
      {"layers", b.layers},
      {"width", b.width},
      {"heads", b.heads},
      {"time_gap_buckets", b.time_gap_buckets},
      {"attention_time_buckets", b.attention_time_buckets}};
  for (const auto& [key, value] : positive)
    if (value < 1)
      throw user_error(at(std::string("backbone.") + key), "backbone.", key,
                       " must be 1 or more, found ", value);
  const std::pair<const char*, std::pair<int64_t, int64_t>> limits[] = {
      {"layers", {b.layers, kMostLayers}},
      {"width", {b.width, kMostWidth}},
      {"mlp_width", {b.mlp_width, kMostMlpWidth}},
      {"time_gap_buckets", {b.time_gap_buckets, kMostBuckets}},
      {"attention_time_buckets", {b.attention_time_buckets, kMostBuckets}}};
  for (const auto& [key, limit] : limits)
    check_at_most(at, std::string("backbone.") + key, limit.first, limit.second);
  if (b.width % b.heads != 0)
    throw user_error(at("backbone.heads"), "backbone.heads ", b.heads,
                     " must divide backbone.width ", b.width);
  const auto rope =
      std::find(b.position.begin(), b.position.end(), BackboneConfig::Position::kRope);
  if (rope != b.position.end() && (b.width / b.heads) % 2 != 0)
    throw user_error(at("backbone.position"), "rope turns pairs: the head dimension ",
                     b.width / b.heads, " (width / heads) must be even");
  check_once(b.attention_bias, "backbone.attention_bias", at);
  check_once(b.position, "backbone.position", at);
  if (b.attention == BackboneConfig::Attention::kBlock && !b.attention_bias.empty())
    throw user_error(at("backbone.attention_bias"),
                     "block attention has no attention_bias: remove it, or take softmax, silu or "
                     "gelu");
  if (!(b.rope_base > 0 && b.rope_base <= kMostReal))
    throw user_error(at("backbone.rope_base"), "rope_base must be above 0, 1e30 at most, found ",
                     b.rope_base);
  if (b.mlp_width < 0) throw user_error(at("backbone.mlp_width"), "mlp_width must be 0 or more");
  if (!(b.dropout >= 0 && b.dropout < 1))
    throw user_error(at("backbone.dropout"), "backbone.dropout must be in [0, 1), found ",
                     b.dropout);
}

void check_heads(const ModelConfig& model, const Provenance& at) {
  if (model.heads.empty())
    throw user_error(at("heads"), "a model needs a head: next_item, or a task with a binary label");
  for (const auto& [name, head] : model.heads) {
    const std::string path = "heads." + name;
    const bool binary = head.loss == HeadConfig::Loss::kBinary;
    if (binary == (name == "next_item"))
      throw user_error(at(path + ".loss"),
                       binary ? "the head 'next_item' needs sampled_softmax or full_softmax"
                              : "only the head 'next_item' has a softmax over a table; the task '" +
                                    name + "' needs loss: binary");
    if (!(head.weight >= 0 && head.weight <= kMostReal))
      throw user_error(at(path + ".weight"), "a head's weight must be 0 or more, 1e30 at most");
    if (binary) {
      if (!head.table.empty())
        check_table_name(model, head.table, "the head '" + name + "'", at(path + ".table"));
      continue;
    }
    check_table_name(model, head.table, "the head 'next_item'", at(path + ".table"));
    if (!model.backbone.causal)
      throw user_error(at("backbone.causal"),
                       "next_item would see the item that it predicts: backbone.causal must be "
                       "true, or the head must go");
    if (head.loss == HeadConfig::Loss::kFullSoftmax && model.tables.at(head.table).hash_ways > 0)
      throw user_error(at(path + ".loss"), "full_softmax needs a table with direct ids; '",
                       head.table, "' is hashed, use sampled_softmax");
    if (head.loss == HeadConfig::Loss::kSampledSoftmax && head.negatives < 1)
      throw user_error(at(path + ".negatives"), "negatives must be 1 or more");
    check_at_most(at, path + ".negatives", head.negatives, kMostNegatives);
    if (!(head.temperature > 0 && head.temperature <= kMostReal))
      throw user_error(at(path + ".temperature"),
                       "temperature must be above 0, 1e30 at most, found ", head.temperature);
  }
}

}  // namespace

void validate(const ModelConfig& model, const Provenance& at) {
  check_features(model, at);
  check_tables(model, at);
  check_backbone(model, at);
  check_heads(model, at);
}

int64_t sample_length(const ModelConfig& model) {
  int64_t longest = 0;
  for (const FeatureConfig& feature : model.features)
    if (feature.kind == FeatureConfig::Kind::kSequence)
      longest = std::max(longest, feature.max_length);
  return longest;
}

int64_t bias_distances(const ModelConfig& model) {
  return model.backbone.causal ? sample_length(model) : 2 * sample_length(model) - 1;
}

int64_t mlp_width(const BackboneConfig& backbone) {
  if (backbone.mlp_width > 0) return backbone.mlp_width;
  if (backbone.mlp == BackboneConfig::Mlp::kGelu) return 4 * backbone.width;
  return std::max<int64_t>(64, backbone.width * 8 / 3 / 64 * 64);
}

}  // namespace tautline
