// The network: feature rows in, one hidden vector per target out. N pre-norm transformer layers
// over jagged sequences, without padding.
//
//   x = concatenated feature rows [-> linear, where their width differs]
//       [+ positions] [+ time gaps]
//   each layer:
//     x += dropout(out(attention(rope(qkv(norm(x))))))   softmax, silu, gelu or block attention,
//                                                        [+ biases by distance and by time]
//     x += dropout(out(f(in(norm(x)))))
//   y = [output(] norm(x at the targets) [)]
//
// With norm layer, mlp gelu, biases and learned positions this is SASRec (Kang, McAuley, ICDM 2018)
// in its pre-norm form; with rms, swiglu, rope the usual language model's block; with silu attention
// and both biases HSTU's attention (Zhai et al. 2024) in that block.
//
// Precision: parameters and table rows FP32; with bf16 compute the activations between operators
// are bf16 and parameters are cast where they are used. Sums inside norms, attention and losses are
// FP32.
//
// T tokens, N targets, E width of a table's row, C backbone width.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tautline/dense/parameters.h"
#include "tautline/models/inputs.h"
#include "tautline/plan/plan.h"
#include "tautline/workload/model.h"

namespace tautline::models {

/// Looked-up rows by table, [I, E] each, in the order of Inputs::ids.
using Rows = std::map<std::string, at::Tensor>;

struct ForwardMode {
  bool training = true;  // dropout
  int64_t step = 0;      // keys dropout
};

class SequenceModel {
 public:
  SequenceModel(const ModelConfig& config, const PrecisionPlan& precision, uint64_t seed,
                at::Device device);

  dense::Parameters& parameters() { return parameters_; }
  const dense::Parameters& parameters() const { return parameters_; }
  const ModelConfig& config() const { return config_; }

  /// The backbone's hidden vectors at the targets after the final norm, [N, C].
  at::Tensor hidden(const Inputs& inputs, const Rows& rows, const ForwardMode& mode) const;
  /// hidden -> the head table's space, [N, E].
  at::Tensor output(const at::Tensor& hidden) const;
  /// A binary head's logits, [N] FP32. `candidate` [N, E]: rows of the target items, where the head
  /// has a table.
  at::Tensor logits(const std::string& head, const at::Tensor& hidden,
                    const at::Tensor& candidate) const;
  /// The next-item head's repeat bias, [1] FP32; undefined where it has none.
  at::Tensor repeat_bias() const;

 private:
  struct Linear {
    const dense::Parameter* weight = nullptr;  // null: there is no such layer
    at::Tensor bias;                           // or undefined
  };
  struct Norm {
    at::Tensor weight, bias;
  };
  struct Layer {
    Norm attention_norm, mlp_norm;
    Linear qkv, attention_out, mlp_in, mlp_out;
    at::Tensor position_bias, time_bias;  // [H, distances], [H, buckets]; undefined: none
  };
  struct Dropout;

  Linear linear(const std::string& name, bool bias) const;
  Norm norm(const std::string& name) const;
  using AttentionBias = BackboneConfig::AttentionBias;
  at::Tensor bias(const std::string& layer, AttentionBias kind) const;
  at::Tensor cast(const at::Tensor& parameter) const;
  at::Tensor apply(const Linear& linear, const at::Tensor& x) const;
  at::Tensor multiply(const dense::Parameter& weight, const at::Tensor& x,
                      const at::Tensor& bias = {}) const;
  at::Tensor apply(const Norm& norm, const at::Tensor& x) const;
  at::Tensor embed(const Inputs& inputs, const Rows& rows) const;
  at::Tensor attention(const Layer& layer, const at::Tensor& x, const Inputs& inputs) const;
  at::Tensor mlp(const Layer& layer, const at::Tensor& x, const Dropout& dropout) const;
  using Normed = std::tuple<at::Tensor, at::Tensor>;  // s, norm(s)
  Normed add(const Linear& linear, const at::Tensor& x, const at::Tensor& residual,
             const Norm& norm, const Dropout& dropout) const;

  ModelConfig config_;
  PrecisionPlan precision_;
  uint64_t seed_;
  dense::Parameters parameters_;
  Linear input_, output_;
  at::Tensor position_, time_gap_;
  std::vector<Layer> layers_;
  Norm norm_;
};

}  // namespace tautline::models
