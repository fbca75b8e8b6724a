#include "tautline/dense/parameters.h"

#include <algorithm>
#include <cstring>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>

#include "tautline/base/error.h"
#include "tautline/base/random.h"

namespace tautline::dense {
namespace {

/// FNV-1a, 64 bits: names a parameter's stream of random numbers.
uint64_t name_stream(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

int64_t elements(const ParameterSpec& spec) {
  int64_t n = 1;
  for (const int64_t size : spec.sizes) n *= size;
  return n;
}

/// A tensor of its own over a part of a flat buffer. Not a view: autograd would tie the versions of
/// all parameters together.
at::Tensor part_of(const at::Tensor& flat, int64_t begin, const std::vector<int64_t>& sizes) {
  at::Tensor part = at::empty({0}, flat.options());
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
  part.set_(flat.storage(), begin, sizes, strides);
  return part;
}

}  // namespace

std::vector<float> initial_values(const ParameterSpec& spec, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(elements(spec)));
  const double v = spec.initial.value;
  Random random(seed, RandomUse::kParameter, name_stream(spec.name));
  switch (spec.initial.kind) {
    case Initial::Kind::kConstant:
      std::fill(values.begin(), values.end(), static_cast<float>(v));
      break;
    case Initial::Kind::kNormal:
      for (float& x : values) x = static_cast<float>(v * random.normal());
      break;
    case Initial::Kind::kUniform:
      for (float& x : values) x = static_cast<float>(v * (2 * random.uniform() - 1));
      break;
  }
  return values;
}

Parameters::Parameters(const std::vector<ParameterSpec>& specs, uint64_t seed, at::Device device) {
  const at::NoGradGuard no_grad;
  int64_t count = 0;
  for (const ParameterSpec& spec : specs) count += elements(spec);
  at::Tensor host = at::empty({count}, at::kFloat);
  int64_t begin = 0;
  for (const ParameterSpec& spec : specs) {
    const std::vector<float> values = initial_values(spec, seed);
    if (!values.empty()) {
      std::memcpy(host.mutable_data_ptr<float>() + begin, values.data(),
                  values.size() * sizeof(float));
    }
    begin += static_cast<int64_t>(values.size());
  }
  values_ = host.to(device);
  gradients_ = at::zeros_like(values_);

  begin = 0;
  for (const ParameterSpec& spec : specs) {
    Parameter parameter{spec.name,
                        part_of(values_, begin, spec.sizes),
                        part_of(gradients_, begin, spec.sizes),
                        spec.decay,
                        begin,
                        begin + elements(spec)};
    parameter.value.set_requires_grad(true);
    parameter.value.mutable_grad() = parameter.gradient;
    begin = parameter.end;
    all_.push_back(std::move(parameter));
  }
}

const Parameter& Parameters::find(std::string_view name) const {
  const auto found = std::find_if(
      all_.begin(), all_.end(), [&](const Parameter& parameter) { return parameter.name == name; });
  TAUTLINE_INVARIANT(found != all_.end(), "no dense parameter is called '" << name << "'");
  return *found;
}

void Parameters::clear_gradients() {
  const at::NoGradGuard no_grad;
  gradients_.zero_();
  for (const Parameter& parameter : all_) parameter.stale = false;
}

void Parameters::begin_backward() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> others;
  for (const Parameter& parameter : all_) {
    parameter.stale = parameter.by_products;
    if (!parameter.stale && parameter.begin < parameter.end) others.push_back(parameter.gradient);
  }
  if (!others.empty()) at::_foreach_zero_(others);
}

void Parameters::end_backward() {
  const at::NoGradGuard no_grad;
  for (const Parameter& parameter : all_) {
    if (parameter.stale) parameter.gradient.zero_();
    parameter.stale = false;
  }
}

void Parameter::add_product(const at::Tensor& d_y, const at::Tensor& x) const {
  if (x.size(0) == 0) return add_nothing();
  const at::NoGradGuard no_grad;
  at::Tensor sum = gradient;
  const at::Tensor left = d_y.t();
  if (d_y.is_cuda() && d_y.scalar_type() != at::kFloat) {
    if (stale)
      at::mm_out(sum, left, x, at::kFloat);
    else
      at::addmm_out(sum, sum, left, x, at::kFloat);
  } else if (stale) {
    sum.copy_(left.mm(x));
  } else {
    sum.add_(left.mm(x));
  }
  stale = false;
}

void Parameter::add_nothing() const {
  const at::NoGradGuard no_grad;
  at::Tensor sum = gradient;
  if (stale) sum.zero_();
  stale = false;
}

}  // namespace tautline::dense
