// Named dense parameters: FP32 master values, their gradients, both in flat buffers.
//
// All values lie end to end in one buffer and all gradients in another, in the order of the
// specification (input first, output last). So an all-reduce works on contiguous buckets, and a
// checkpoint or a snapshot is one copy. Each parameter is a leaf of autograd whose storage is its
// part of the buffer.
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

  /// gradient += d_y^T x for d_y [T, out] and x [T, in] of this [out, in] matrix: what a layer's own
  /// backward calls instead of giving autograd a gradient. On CUDA the product is FP32; on the CPU it
  /// has d_y's type.
  void add_product(const at::Tensor& d_y, const at::Tensor& x) const;
  /// A layer's backward that has no d_y: the last step's gradient is not this one's.
  void add_nothing() const;

  // Whether products come, and whether the next one overwrites what is there (begin_backward).
  mutable bool by_products = false, stale = false;
};

class Parameters {
 public:
  Parameters(const std::vector<ParameterSpec>& specs, uint64_t seed, at::Device device);
  Parameters(Parameters&&) = default;  // no copy: layers point at what all() holds

  /// The one called `name`; asking for one that was not specified is our bug. It stays where it is.
  const Parameter& find(std::string_view name) const;
  /// Its leaf.
  const at::Tensor& operator[](std::string_view name) const { return find(name).value; }

  const std::vector<Parameter>& all() const { return all_; }
  const at::Tensor& values() const { return values_; }        // [count] FP32
  const at::Tensor& gradients() const { return gradients_; }  // [count] FP32
  int64_t count() const { return values_.numel(); }
  void clear_gradients();
  /// Around a backward: together as if all gradients were cleared before it. Those of `by_products` are
  /// overwritten instead; until their product comes, or the end, they are the last step's.
  void begin_backward();
  void end_backward();

 private:
  std::vector<Parameter> all_;
  at::Tensor values_, gradients_;
};

/// The numbers a specification starts with, on the host.
std::vector<float> initial_values(const ParameterSpec& spec, uint64_t seed);

}  // namespace tautline::dense
