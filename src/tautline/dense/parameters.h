// Named dense parameters: FP32 master values, their gradients, both in flat buffers.
//
// All values lie end to end in one buffer and all gradients in another, in the order of the
// specification (input first, output last). So an all-reduce works on contiguous buckets, clearing
// the gradients is one call, and a checkpoint or a snapshot is one copy. Each parameter is a leaf
// of autograd whose storage is its part of the buffer.
//
// An initial value is a function of (seed, name, position) alone: never of the rank, the order of
// construction or the number of other parameters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tautline::dense {

/// How a parameter starts.
struct Initial {
  enum class Kind { kConstant, kNormal, kUniform };
  Kind kind = Kind::kConstant;
  double value = 0;  // the constant, the standard deviation, or the bound of [-value, value)
};

struct ParameterSpec {
  std::string name;  // layer.0.attention.qkv.weight
  std::vector<int64_t> sizes;
  Initial initial;
  bool decay = false;  // weight decay applies (matrices)
};

struct Parameter {
  std::string name;
  at::Tensor value;     // leaf with requires_grad; a part of Parameters::values()
  at::Tensor gradient;  // a part of Parameters::gradients(); autograd adds into it
  bool decay = false;
  int64_t begin = 0, end = 0;  // elements of the flat buffers
};

class Parameters {
 public:
  Parameters(const std::vector<ParameterSpec>& specs, uint64_t seed, at::Device device);

  /// The leaf called `name`; asking for one that was not specified is our bug.
  const at::Tensor& operator[](std::string_view name) const;

  const std::vector<Parameter>& all() const { return all_; }
  const at::Tensor& values() const { return values_; }        // [count] FP32
  const at::Tensor& gradients() const { return gradients_; }  // [count] FP32
  int64_t count() const { return values_.numel(); }
  void clear_gradients();

 private:
  std::vector<Parameter> all_;
  at::Tensor values_, gradients_;
};

/// The numbers a specification starts with, on the host.
std::vector<float> initial_values(const ParameterSpec& spec, uint64_t seed);

}  // namespace tautline::dense
