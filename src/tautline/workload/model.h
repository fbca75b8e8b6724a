// A model as its YAML says it (configs/models/*.yaml): features, tables, backbone, heads.
// Plain values; models/ builds the network from them, planner/ places the tables.
//
// Each struct has a `fields(visitor, value)` beside it that names every key once; reading, writing,
// printing, comparing and explaining are visitors over it (base/config.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tautline {

/// How a table's rows change: exact, and only the touched rows change.
struct TableOptimizer {
  enum class Kind { kSgd, kRowwiseAdagrad, kAdam };
  Kind kind = Kind::kRowwiseAdagrad;
  double lr = 0.02;
  double eps = 1e-8;
  double beta1 = 0.9, beta2 = 0.98;  // Adam only
  double weight_decay = 0.0;         // decoupled, touched rows only
  bool operator==(const TableOptimizer&) const = default;
};

struct TableConfig {
  int64_t rows = 0;       // 0: as many as the vocabulary of the log has, plus one for unknown
  int64_t dim = 64;       // of the whole embedding, over all hash ways
  int64_t hash_ways = 0;  // 0: direct ids; n: n hashed sub-tables of dim/n concatenated
  double init_std = 0.02;
  TableOptimizer optimizer;
  bool operator==(const TableConfig&) const = default;
};

struct FeatureConfig {
  enum class Kind { kSequence, kPooled };
  enum class Pooling { kSum, kMean };
  std::string name;
  Kind kind = Kind::kSequence;
  std::string table;
  std::string column;  // of the built log; empty: `name`
  Pooling pooling = Pooling::kMean;
  int64_t max_length = 200;  // events of one sample; longer histories are cut into chunks
  bool operator==(const FeatureConfig&) const = default;
};

struct BackboneConfig {
  /// kBlock: softmax inside blocks of 64 tokens. kSilu and kGelu: the activation in softmax's place,
  /// divided by the longest sample's length (HSTU, Zhai et al. 2024, equation 2).
  enum class Attention { kSoftmax, kSilu, kGelu, kBlock };
  enum class AttentionBias { kPosition, kTime };
  enum class Norm { kRms, kLayer };
  enum class Mlp { kSwiglu, kGelu };
  enum class Position { kRope, kLearned, kTimeGap };
  int64_t layers = 2;
  int64_t width = 64;
  int64_t heads = 2;
  int64_t mlp_width =
      0;  // 0: 4 x width for gelu; 8/3 x width rounded down to a multiple of 64 for swiglu
  Attention attention = Attention::kSoftmax;
  std::vector<AttentionBias> attention_bias;  // learned, a head and a distance; HSTU's
  int64_t attention_time_buckets = 64;        // two an octave of seconds
  bool causal = true;
  Norm norm = Norm::kRms;
  Mlp mlp = Mlp::kSwiglu;
  bool bias = false;  // biases of the linear layers
  std::vector<Position> position = {Position::kRope};
  int64_t time_gap_buckets = 64;
  double rope_base = 10000.0;
  double dropout = 0.0;
  bool operator==(const BackboneConfig&) const = default;
};

/// Tokens of a block of block attention (kernels/block_attention.h).
inline constexpr int64_t kAttentionBlock = 64;

/// Whether scores have that bias.
inline bool has_bias(const BackboneConfig& backbone, BackboneConfig::AttentionBias bias) {
  const auto& all = backbone.attention_bias;
  return std::find(all.begin(), all.end(), bias) != all.end();
}

struct HeadConfig {
  enum class Loss { kSampledSoftmax, kFullSoftmax, kBinary };
  Loss loss = Loss::kSampledSoftmax;
  std::string table;         // next item: whose rows are the classes
  int64_t negatives = 1024;  // sampled softmax: shared by the whole step
  bool log_q = true;         // subtract log of a candidate's sampling probability
  bool normalize = false;    // L2-normalise output and items
  double temperature = 1.0;
  bool repeat_bias = false;  // full softmax: a learned number on the scores of the history's items
  std::string label;         // binary: the column that holds it; click-like tasks
  double weight = 1.0;       // of this head's loss in the sum
  bool operator==(const HeadConfig&) const = default;
};

struct ModelConfig {
  std::string name;
  std::vector<FeatureConfig> features;
  std::map<std::string, TableConfig> tables;
  BackboneConfig backbone;
  std::map<std::string, HeadConfig> heads;  // "next_item" or a task's name
  bool operator==(const ModelConfig&) const = default;
};

}  // namespace tautline
