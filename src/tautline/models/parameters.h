// The dense parameters that a model has, from its configuration alone.
//
// Initial values: linear layers as torch.nn.Linear (uniform in +-1/sqrt(inputs), weight and bias),
// learned positions, time gaps and attention biases normal with standard deviation .02, norms at
// one, a norm's bias at zero. Tables are embedding/'s.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tautline/dense/parameters.h"
#include "tautline/workload/model.h"

namespace tautline::models {

/// Width of the concatenated feature rows.
int64_t input_width(const ModelConfig& model);

/// Embedding width of the next-item head's table; the backbone's width where there is no such head.
int64_t output_width(const ModelConfig& model);

/// In the order in which a forward uses them, so that the backward finishes them from the end.
std::vector<dense::ParameterSpec> parameter_specs(const ModelConfig& model);

}  // namespace tautline::models
