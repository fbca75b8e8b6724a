#include "tautline/ops/attention_arguments.h"

#include "tautline/base/error.h"
#include "tautline/kernels/attention.h"

namespace tautline::ops {
namespace {

void check_offsets_of(const AttentionArguments& a, std::string_view name) {
  const Tensor& k = a.k_offsets;
  if (k.dim() != 1 || k.numel() < 1 || k.scalar_type() != at::kLong)
    throw user_error(name, ": k_offsets ", k.sizes(), " are not [B + 1] of int64");
  if (a.q_offsets && (a.q_offsets->sizes() != k.sizes() || a.q_offsets->scalar_type() != at::kLong))
    throw user_error(name, ": offsets ", a.q_offsets->sizes(), " and ", k.sizes(),
                     " are not both [B + 1] of int64");
  if (!a.q.is_cpu()) return;
  if (a.q_offsets) check_offsets(*a.q_offsets, a.q.size(0));
  check_offsets(k, a.k.size(0));
}

void check_devices(const AttentionArguments& a, std::string_view name) {
  const std::pair<const char*, OptionalTensor> others[] = {{"k", a.k},
                                                           {"v", a.v},
                                                           {"q_offsets", a.q_offsets},
                                                           {"k_offsets", a.k_offsets},
                                                           {"position_bias", a.position_bias},
                                                           {"time_bias", a.time_bias},
                                                           {"q_time", a.q_time},
                                                           {"k_time", a.k_time},
                                                           {"order", a.order}};
  for (const auto& [what, tensor] : others)
    if (tensor && tensor->device() != a.q.device())
      throw user_error(name, ": ", what, " is on ", tensor->device().str(), ", q on ",
                       a.q.device().str());
}

/// A bias table [H or 1, entries].
void check_table(const AttentionArguments& a, const OptionalTensor& table, std::string_view name,
                 std::string_view what) {
  if (!table) return;
  if (table->dim() != 2 || table->size(1) < 1 ||
      (table->size(0) != 1 && table->size(0) != a.q.size(1)))
    throw user_error(name, ": ", what, " ", table->sizes(), " is not [", a.q.size(1),
                     " heads or 1, entries]");
}

void check_bias(const AttentionArguments& a, std::string_view name) {
  check_table(a, a.position_bias, name, "position_bias");
  check_table(a, a.time_bias, name, "time_bias");
  if (a.position_bias && a.position_bias->size(1) % 2 == 0)
    throw user_error(name, ": position_bias has ", a.position_bias->size(1),
                     " entries; 2 R - 1 are needed, for the distances - (R - 1) .. R - 1");
  if (a.time_bias.has_value() != a.q_time.has_value() ||
      a.time_bias.has_value() != a.k_time.has_value())
    throw user_error(name, ": time_bias, q_time and k_time go together");
  if (a.time_bias && (a.q_time->sizes() != at::IntArrayRef(a.q.size(0)) ||
                      a.k_time->sizes() != at::IntArrayRef(a.k.size(0))))
    throw user_error(name, ": ", a.q_time->sizes(), " and ", a.k_time->sizes(), " times for ",
                     a.q.size(0), " and ", a.k.size(0), " tokens");
}

Tensor float_table(const OptionalTensor& x) { return x ? float_vector(*x) : Tensor(); }
Tensor times(const OptionalTensor& x, const Tensor& beside, std::string_view what) {
  return x ? int64_vector(*x, beside, what) : Tensor();
}
/// Elements from one head's row to the next's: 0 where all heads share one.
int64_t head_stride(const Tensor& table) { return table.size(0) == 1 ? 0 : table.size(1); }

}  // namespace

c10::SymInt AttentionArguments::rows() const {
  return q_offsets ? q.sym_size(0) : q.sym_size(0) * (k_offsets.sym_size(0) - 1);
}

void check(const AttentionArguments& a, std::string_view name) {
  const Tensor &q = a.q, &k = a.k, &v = a.v;
  if (q.dim() != 3 || k.dim() != 3 || v.dim() != 3 || k.size(0) != v.size(0) ||
      k.size(1) != v.size(1) || q.size(2) != k.size(2) || k.size(1) == 0 ||
      q.size(1) % k.size(1) != 0)
    throw user_error(name, ": q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes(),
                     " are not [Tq, H, D], [Tk, G, D], [Tk, G, E] with H a multiple of G");
  if (a.window_left < -1 || a.window_right < -1)
    throw user_error(name, ": window ", a.window_left, ", ", a.window_right,
                     "; -1 is no bound, smaller numbers mean nothing");
  check_devices(a, name);
  check_offsets_of(a, name);
  check_bias(a, name);
  if (!q.is_cpu()) check_cuda(q, k, v, name);
}

void check_cuda(const Tensor& q, const Tensor& k, const Tensor& v, std::string_view name) {
  const auto type = q.scalar_type();
  if (type != at::kBFloat16 && type != at::kHalf)
    throw user_error(name, ": ", toString(type), " on CUDA; bfloat16 or float16 is needed");
  if (k.scalar_type() != type || v.scalar_type() != type)
    throw user_error(name, ": q, k and v are ", toString(type), ", ", toString(k.scalar_type()),
                     " and ", toString(v.scalar_type()), "; on CUDA they must be of one type");
  if (std::max(q.size(2), v.size(2)) > 256)
    throw user_error(name, ": head dimensions ", q.size(2), " and ", v.size(2),
                     "; CUDA takes at most 256");
}

at::TensorOptions result_options(const Tensor& x) {
  return x.is_cpu() ? float_like(x) : x.options();
}
Tensor heads_readable(const Tensor& x) {
  const Tensor f = x.is_cpu() ? x.to(at::kFloat) : x;
  return f.stride(2) == 1 || f.size(2) == 1 ? f : f.contiguous();
}
kernels::HeadsView heads_view(const Tensor& x) {
  return {const_cast<void*>(x.const_data_ptr()), x.stride(0), x.stride(1)};
}

kernels::AttentionWindow window_of(bool causal, int64_t left, int64_t right) {
  constexpr int64_t kFar = int64_t{1} << 61;
  return {std::min(left, kFar), causal ? 0 : std::min(right, kFar)};
}

int64_t task_cost(const kernels::AttentionProblem& p) {
  const int64_t sequences = std::max<int64_t>(1, p.sequences);
  const int64_t keys = p.k_tokens / sequences;
  const int64_t left = p.window.left < 0 ? keys : p.window.left;
  const int64_t right = p.window.right < 0 ? keys : p.window.right;
  return (p.rows / sequences + 1) * (std::min(keys, left + right) + 16) * 8 *
         (p.heads / p.kv_heads);
}

AttentionTensors::AttentionTensors(const AttentionArguments& a)
    : a_(a),
      q_(heads_readable(a.q)),
      k_(heads_readable(a.k)),
      v_(heads_readable(a.v)),
      q_offsets_(a.q_offsets ? a.q_offsets->contiguous() : Tensor()),
      k_offsets_(a.k_offsets.contiguous()),
      position_(float_table(a.position_bias)),
      time_(float_table(a.time_bias)),
      q_time_(times(a.q_time, a.q, "q_time")),
      k_time_(times(a.k_time, a.q, "k_time")) {}

void AttentionTensors::fill(kernels::AttentionProblem& p) const {
  p.q = heads_view(q_);
  p.k = heads_view(k_);
  p.v = heads_view(v_);
  if (q_offsets_.defined()) p.q_offsets = q_offsets_.const_data_ptr<int64_t>();
  p.k_offsets = k_offsets_.const_data_ptr<int64_t>();
  p.sequences = k_offsets_.numel() - 1;
  p.heads = q_.size(1);
  p.kv_heads = k_.size(1);
  p.head_dim = q_.size(2);
  p.value_dim = v_.size(2);
  p.rows = a_.rows().expect_int();
  p.k_tokens = k_.size(0);
  p.max_q = a_.q_offsets ? a_.max_q : q_.size(0);
  p.max_k = a_.max_k;
  p.query_parts = p.sequences;
  p.window = window_of(a_.causal, a_.window_left, a_.window_right);
  p.element = element_of(q_);
  p.stream = stream_of(q_);
  if (position_.defined()) {
    p.bias.position = position_.const_data_ptr<float>();
    p.bias.distances = (position_.size(1) + 1) / 2;
    p.bias.position_stride = head_stride(position_);
  }
  if (time_.defined()) {
    p.bias.time = time_.const_data_ptr<float>();
    p.bias.time_buckets = time_.size(1);
    p.bias.time_stride = head_stride(time_);
    p.bias.q_time = q_time_.const_data_ptr<int64_t>();
    p.bias.k_time = k_time_.const_data_ptr<int64_t>();
  }
}

AttentionGradientTensors::AttentionGradientTensors(const AttentionArguments& a, const Tensor& d_o,
                                                   kernels::AttentionProblem& p,
                                                   const GradientViews& into)
    : a_(a), p_(p), into_(into), d_o_(d_o.is_cpu() ? heads_readable(d_o) : d_o.contiguous()) {
  const auto options = float_like(a.q);
  // Straight into their places where the kernel writes the places' type.
  const auto tensor = [](const Tensor& place, at::IntArrayRef sizes,
                         const at::TensorOptions& kind) {
    return place.defined() && place.scalar_type() == c10::typeMetaToScalarType(kind.dtype())
               ? place
               : at::empty(sizes, kind);
  };
  d_q_ = tensor(into.q, {p.rows, p.heads, p.head_dim}, a.q_offsets ? result_options(a.q) : options);
  d_k_ = tensor(into.k, a.k.sizes(), result_options(a.k));
  d_v_ = tensor(into.v, a.v.sizes(), result_options(a.v));
  p.d_o = heads_view(d_o_);
  p.d_q = heads_view(d_q_);
  p.d_k = heads_view(d_k_);
  p.d_v = heads_view(d_v_);
  d_position_ = at::empty(a.position_bias ? a.position_bias->sizes() : at::IntArrayRef(0), options);
  d_time_ = at::empty(a.time_bias ? a.time_bias->sizes() : at::IntArrayRef(0), options);
  if (a.position_bias) {
    position_partial_ = at::empty({p.heads, p.rows + p.k_tokens}, options);
    p.bias.position_partial = position_partial_.mutable_data_ptr<float>();
    p.bias.d_position = d_position_.mutable_data_ptr<float>();
  }
  if (a.time_bias) {
    time_partial_ = at::empty({p.heads, p.sequences, p.bias.time_buckets}, options);
    p.bias.time_partial = time_partial_.mutable_data_ptr<float>();
    p.bias.d_time = d_time_.mutable_data_ptr<float>();
  }
}

Tensor AttentionGradientTensors::summed_parts() const {
  Tensor sum = at::empty(a_.q.sizes(), float_like(a_.q));
  const auto* from = d_q_.const_data_ptr<float>();
  auto* to = sum.mutable_data_ptr<float>();
  if (a_.q.is_cpu()) {
    parallel(sum.numel(), p_.query_parts, [&](int64_t i, int64_t j) {
      kernels::broadcast_query_finish_cpu(from, p_.query_parts, sum.numel(), to, i, j);
    });
  } else {
    if constexpr (kCudaBuild)
      kernels::broadcast_query_finish_cuda(from, p_.query_parts, sum.numel(), to, p_.stream);
  }
  return sum;
}

AttentionGradients AttentionGradientTensors::finish() {
  const int64_t tables = kernels::position_tables(p_) + kernels::time_tables(p_);
  if (a_.q.is_cpu()) {
    parallel(tables, p_.rows + p_.k_tokens,
             [&](int64_t i, int64_t j) { kernels::attention_bias_finish_cpu(p_, i, j); });
  } else {
    if constexpr (kCudaBuild) kernels::attention_bias_finish_cuda(p_);
  }
  const Tensor d_q = a_.q_offsets ? d_q_ : summed_parts();
  const auto as = [](const Tensor& x, const OptionalTensor& argument) {
    return argument ? x.to(argument->scalar_type()) : x;
  };
  return placed({as(d_q, a_.q), as(d_k_, a_.k), as(d_v_, a_.v), as(d_position_, a_.position_bias),
                 as(d_time_, a_.time_bias)},
                into_);
}

AttentionGradients placed(const AttentionGradients& gradients, const GradientViews& into) {
  if (!into.q.defined()) return gradients;
  const auto& [d_q, d_k, d_v, d_position, d_time] = gradients;
  const auto put = [](const Tensor& value, const Tensor& place) {
    if (!value.is_same(place)) place.copy_(value);
    return place;
  };
  return {put(d_q, into.q), put(d_k, into.k), put(d_v, into.v), d_position, d_time};
}

AttentionGradients gradients_meta(const AttentionArguments& a) {
  const auto like = [&](const OptionalTensor& x) {
    return x ? at::empty_symint(x->sym_sizes(), x->options()) : at::empty({0}, float_like(a.q));
  };
  return {like(a.q), like(a.k), like(a.v), like(a.position_bias), like(a.time_bias)};
}

}  // namespace tautline::ops
