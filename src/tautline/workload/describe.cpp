#include "tautline/workload/describe.h"

#include <algorithm>
#include <cmath>

#include "tautline/workload/model_fields.h"

namespace tautline {
namespace {

const std::string& column_of(const FeatureConfig& feature) {
  return feature.column.empty() ? feature.name : feature.column;
}

bool has(const BackboneConfig& backbone, BackboneConfig::Position position) {
  return std::count(backbone.position.begin(), backbone.position.end(), position) > 0;
}

/// Tokens and attention pairs of a sample, on average.
struct SampleShape {
  double tokens = 0, pairs = 0;
};

// Inverse of the standard normal distribution function (bisection: 60 halvings of [-8, 8]).
double normal_quantile(double p) {
  double low = -8, high = 8;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

// The log-normal that fits, at 1,000 equally likely lengths, kept inside the lengths that occur.
SampleShape sample_shape(const LengthStatistics& length, int64_t longest,
                         const BackboneConfig& backbone) {
  constexpr int kPoints = 1000;
  double tokens = 0, pairs = 0, samples = 0;
  for (int i = 0; i < kPoints; ++i) {
    const double z = normal_quantile((i + 0.5) / kPoints);
    const double events = std::clamp(std::exp(length.log_mean + length.log_sigma * z),
                                     static_cast<double>(std::max<int64_t>(length.minimum, 1)),
                                     static_cast<double>(std::max<int64_t>(length.maximum, 1)));
    const double history = events >= 3 ? events - 2 : events;  // without the held-out events
    const double positions = history - 1;                      // the last event is only a target
    if (positions < 1) continue;
    const double full = std::floor(positions / static_cast<double>(longest));
    const double rest = positions - full * static_cast<double>(longest);
    tokens += positions;
    samples += full + (rest > 0 ? 1 : 0);
    pairs += full * attention_pairs(static_cast<double>(longest), backbone) +
             attention_pairs(rest, backbone);
  }
  if (samples == 0) return {};
  return {tokens / samples, pairs / samples};
}

/// Of one layer: a head's number for each distance, and for each bucket of time.
double bias_tables(const ModelConfig& model) {
  const BackboneConfig& b = model.backbone;
  int64_t entries = 0;
  if (has_bias(b, BackboneConfig::AttentionBias::kPosition)) entries += bias_distances(model);
  if (has_bias(b, BackboneConfig::AttentionBias::kTime)) entries += b.attention_time_buckets;
  return static_cast<double>(b.heads * entries);
}

double state_bytes_per_row(const TableConfig& table) {
  switch (table.optimizer.kind) {
    case TableOptimizer::Kind::kSgd:
      return 0;
    case TableOptimizer::Kind::kRowwiseAdagrad:  // one sum a row of each sub-table
      return 4.0 * static_cast<double>(std::max<int64_t>(1, table.hash_ways));
    case TableOptimizer::Kind::kAdam:
      return 8.0 * static_cast<double>(table.dim);
  }
  return 0;
}

/// A feature's column that has no vocabulary: numbers and labels are in the log, but no feature
/// reads them.
[[noreturn]] void refuse_column(const ModelConfig& model, const FeatureConfig& feature,
                                const LogStatistics& log) {
  const std::string& column = column_of(feature);
  const std::string reads = "the feature '" + feature.name + "' of the model '" + model.name +
                            "' reads the column '" + column + "', ";
  const auto among = [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), column) != names.end();
  };
  if (among(log.dense))
    throw user_error(reads, "which holds numbers in the log '", log.name,
                     "': no model reads dense columns yet, they are built but unused; remove the "
                     "feature, or build the column with --categorical");
  if (among(log.labels))
    throw user_error(reads, "which is a label of the log '", log.name,
                     "': heads learn labels, features do not read them");
  std::vector<std::string> columns;
  for (const auto& [name, vocabulary] : log.vocabularies) columns.push_back(name);
  throw user_error(reads, "which the log '", log.name, "' does not have",
                   suggestion(column, columns));
}

}  // namespace

double useful_flop(double dense_parameters, double tokens, double pairs, int64_t heads,
                   int64_t head_dim, int64_t layers) {
  const double attention = 3.5 * 4 * static_cast<double>(heads * head_dim) * pairs;
  return 6 * dense_parameters * tokens + attention * static_cast<double>(layers);
}

double attention_pairs(double tokens, const BackboneConfig& backbone) {
  const auto square = [&](double n) { return backbone.causal ? n * n / 2 : n * n; };
  if (backbone.attention != BackboneConfig::Attention::kBlock) return square(tokens);
  const double blocks = std::floor(tokens / kAttentionBlock);
  return blocks * square(kAttentionBlock) + square(tokens - blocks * kAttentionBlock);
}

double dense_parameters(const ModelConfig& model) {
  const BackboneConfig& b = model.backbone;
  const auto linear = [](int64_t out, int64_t in, bool bias) {
    return static_cast<double>(out) * static_cast<double>(in) +
           (bias ? static_cast<double>(out) : 0);
  };
  const double norm =
      static_cast<double>(b.width) * (b.norm == BackboneConfig::Norm::kLayer ? 2 : 1);
  const int64_t inner = mlp_width(b);
  const int64_t mlp_in = b.mlp == BackboneConfig::Mlp::kSwiglu ? 2 * inner : inner;
  const double layer = linear(3 * b.width, b.width, b.bias) + linear(b.width, b.width, b.bias) +
                       linear(mlp_in, b.width, b.bias) + linear(b.width, inner, b.bias) + 2 * norm +
                       bias_tables(model);
  double total = layer * static_cast<double>(b.layers) + norm;

  int64_t input = 0, output = b.width;
  for (const FeatureConfig& feature : model.features) input += model.tables.at(feature.table).dim;
  for (const auto& [name, head] : model.heads) {
    if (head.loss != HeadConfig::Loss::kBinary) {
      output = model.tables.at(head.table).dim;
      total += head.repeat_bias ? 1 : 0;
      continue;
    }
    total += linear(1, b.width, true);
    if (!head.table.empty()) total += linear(model.tables.at(head.table).dim, b.width, false);
  }
  if (input != b.width) total += linear(b.width, input, b.bias);
  if (output != b.width) total += linear(output, b.width, false);
  if (has(b, BackboneConfig::Position::kLearned))
    total += linear(sample_length(model), b.width, false);
  if (has(b, BackboneConfig::Position::kTimeGap))
    total += linear(b.time_gap_buckets, b.width, false);
  return total;
}

ModelConfig with_rows(const ModelConfig& model, const LogStatistics& log) {
  ModelConfig out = model;
  std::map<std::string, int64_t> needed;
  for (const FeatureConfig& feature : model.features) {
    const auto vocabulary = log.vocabularies.find(column_of(feature));
    if (vocabulary == log.vocabularies.end()) refuse_column(model, feature, log);
    int64_t& rows = needed[feature.table];
    rows = std::max(rows, vocabulary->second.size + 1);
  }
  for (auto& [name, table] : out.tables) {
    const int64_t rows = needed[name];
    if (table.rows == 0) table.rows = rows;
    if (table.rows == 0)
      throw user_error("the table '", name, "' of the model '", model.name,
                       "' has rows: 0, but no feature reads it; give its rows or remove it");
    if (table.hash_ways == 0 && table.rows < rows)
      throw user_error("the table '", name, "' of the model '", model.name, "' has ",
                       print_integer(table.rows), " rows, but the log '", log.name,
                       "' has ids up to ", print_integer(rows - 1),
                       "; give it rows: 0 (as many as needed) or hash: "
                       "{ways: 2}");
  }
  return out;
}

Workload describe(const ModelConfig& model_config, const LogStatistics& log, int64_t batch) {
  const ModelConfig model = with_rows(model_config, log);
  const BackboneConfig& b = model.backbone;
  const SampleShape shape = sample_shape(log.length, sample_length(model), b);
  Workload work;
  work.model = model.name;
  work.batch = batch;
  work.tokens_per_step = shape.tokens * static_cast<double>(batch);
  work.dense_parameters = dense_parameters(model);
  work.flop_per_step =
      useful_flop(work.dense_parameters, work.tokens_per_step,
                  shape.pairs * static_cast<double>(batch), b.heads, b.width / b.heads, b.layers);
  for (const auto& [name, table] : model.tables) {
    TableWork& demand = work.tables[name];
    demand.rows = table.rows;
    demand.dim = table.dim;
    demand.state_bytes_per_row = state_bytes_per_row(table);
    for (const FeatureConfig& feature : model.features)
      if (feature.table == name) demand.ids_per_step += work.tokens_per_step;
    for (const auto& [head_name, head] : model.heads)
      if (head.table == name && head.loss == HeadConfig::Loss::kSampledSoftmax)
        // A target's row is that of the next token, but for the last of each sample.
        demand.ids_per_step += static_cast<double>(head.negatives + batch);
  }
  return work;
}

}  // namespace tautline
