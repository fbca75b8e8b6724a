// Problems of attention and gdpa on the device, in the element type: copies of the host's case.
#pragma once

#include <cstring>
#include <type_traits>

#include "tautline/kernels/gdpa.h"

#include "gpu/device.h"
#include "kernels/attention_cases.h"
#include "kernels/embedding_cases.h"

namespace tautline::kernels::testing {

using gpu::DeviceArray;

/// A tensor of the case on the device in the element type; the host's values become the rounded
/// ones.
class DeviceHeads {
 public:
  DeviceHeads(Element element, HeadsTensor& host, bool single = false)
      : element_(single ? Element::kFloat32 : element), host_(host), device_(bytes()) {}
  HeadsView view() const {
    return {device_.data(), host_.view.token_stride, host_.view.head_stride};
  }
  std::vector<uint8_t> raw() const { return device_.host(); }
  std::vector<float> values() const {
    HeadsTensor out = host_;
    const auto raw = device_.host();
    for (size_t i = 0; i < out.data.size(); ++i)
      out.data[i] = value_at(raw, element_, static_cast<int64_t>(i));
    return out.values();
  }

 private:
  std::vector<uint8_t> bytes() {
    std::vector<uint8_t> raw(host_.data.size() * element_bytes(element_));
    with_element(element_, [&](auto t) {
      using T = decltype(t);
      for (size_t i = 0; i < host_.data.size(); ++i) {
        const T rounded = from_float<T>(host_.data[i]);
        std::memcpy(raw.data() + i * sizeof(T), &rounded, sizeof(T));
        host_.data[i] = to_float(rounded);
      }
    });
    return raw;
  }
  Element element_;
  HeadsTensor& host_;
  DeviceArray<uint8_t> device_;
};

/// Copies of the case on the device, and params that point at them.
template <class P>
struct DeviceCase {
  DeviceCase(AttentionData<P>& host, const AttentionCase& c, Element element)
      : q(element, host.q),
        k(element, host.k),
        v(element, host.v),
        o(element, host.o),
        d_o(element, host.d_o),
        d_q(element, host.d_q, c.seeds > 0),
        d_k(element, host.d_k),
        d_v(element, host.d_v),
        q_offsets(host.q_offsets),
        k_offsets(host.k_offsets),
        q_time(host.q_time),
        k_time(host.k_time),
        position(host.position),
        time(host.time),
        d_position(host.d_position),
        d_time(host.d_time),
        position_partial(host.position_partial),
        time_partial(host.time_partial),
        statistics(2 * host.p.heads * host.p.rows),
        p(host.p) {
    p.element = element;
    p.q = q.view(), p.k = k.view(), p.v = v.view(), p.o = o.view(), p.d_o = d_o.view();
    p.d_q = d_q.view(), p.d_k = d_k.view(), p.d_v = d_v.view();
    p.q_offsets = c.seeds > 0 ? nullptr : q_offsets.data();
    p.k_offsets = k_offsets.data();
    p.max_q = c.seeds;
    for (const int64_t n : c.q_lengths) p.max_q = std::max(p.max_q, n);
    for (const int64_t n : c.k_lengths) p.max_k = std::max(p.max_k, n);
    p.query_parts = p.sequences;
    if (p.bias.position) {
      p.bias.position = position.data();
      p.bias.position_partial = position_partial.data();
      p.bias.d_position = d_position.data();
    }
    if (p.bias.time) {
      p.bias.time = time.data();
      p.bias.q_time = q_time.data();
      p.bias.k_time = k_time.data();
      p.bias.time_partial = time_partial.data();
      p.bias.d_time = d_time.data();
    }
    if constexpr (std::is_same_v<P, JaggedAttention>) {
      p.lse = statistics.data();
      p.delta = statistics.data() + p.heads * p.rows;
    }
  }
  std::vector<std::vector<float>> results() const {
    return {o.values(),        d_query(d_q.values(), p.query_parts),
            d_k.values(),      d_v.values(),
            d_position.host(), d_time.host()};
  }
  /// Of broadcast queries the sum of its parts.
  std::vector<float> d_query(std::vector<float> rows, int64_t parts) const {
    if (p.q_offsets) return rows;
    const int64_t columns = p.max_q * p.heads * p.head_dim;
    std::vector<float> sums;
    for (int64_t i = 0; i < columns; ++i) {
      double sum = 0;
      for (int64_t part = 0; part < parts; ++part) sum += rows[part * columns + i];
      sums.push_back(static_cast<float>(sum));
    }
    return sums;
  }
  DeviceHeads q, k, v, o, d_o, d_q, d_k, d_v;
  DeviceArray<int64_t> q_offsets, k_offsets, q_time, k_time;
  DeviceArray<float> position, time, d_position, d_time, position_partial, time_partial, statistics;
  P p;
};

/// The same bits in both runs, or where they differ.
inline void expect_equal(const std::vector<std::vector<float>>& a,
                         const std::vector<std::vector<float>>& b, const AttentionCase& c) {
  for (size_t i = 0; i < a.size(); ++i) {
    std::vector<size_t> off;
    for (size_t j = 0; j < a[i].size(); ++j)
      if (std::memcmp(&a[i][j], &b[i][j], sizeof(float)) != 0) off.push_back(j);
    if (off.empty()) continue;
    ADD_FAILURE() << "another run, other bits: " << off.size() << " of " << a[i].size()
                  << " numbers of result " << i << ", from " << off.front() << " ("
                  << a[i][off.front()] << ", then " << b[i][off.front()] << ") to " << off.back()
                  << "; " << c;
  }
}

/// Forward, backward and what sums up the bias, to the end.
template <class P>
using Run = void (*)(P&);

/// Results of the kernels that `run` starts against the double references, on inputs rounded to the
/// element type first. A result may differ by three roundings to that type (of a weight or d_score
/// before the second product, its own) of terms of about the row's size or 1, in the backward by the
/// E independent ones of o inside d_o . o, and by the bound of FP32 sums (kernels/attention_cases.h).
template <class P>
void expect_like_the_reference(AttentionCase c, Element element, ScoreActivation activation,
                               Shares& shares, Run<P> run) {
  c.packed = false;  // the host's packed projection has no twin here
  AttentionData<P> host(c);
  std::vector<float> lse(host.p.heads * host.p.rows);
  const double scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  if constexpr (std::is_same_v<P, JaggedAttention>) {
    host.p.lse = lse.data();
    host.p.scale = scale;
  } else {
    host.p.activation = activation;
    host.p.alpha = scale;
    host.p.beta = 0.25;
  }
  DeviceCase<P> device(host, c, element);  // rounds the host's inputs
  if constexpr (std::is_same_v<P, JaggedAttention>) {
    jagged_attention_forward_ref(host.p);
    jagged_attention_backward_ref(host.p);
  } else {
    gdpa_forward_ref(host.p);
    gdpa_backward_ref(host.p);
  }
  run(device.p);
  const auto got = device.results();
  run(device.p);
  expect_equal(got, device.results(), c);
  const double slope = activation == ScoreActivation::kSquaredRelu ? 10.0 : 1.0;
  const double step = half_ulp(element) / 0x1p-24, exact = attention_units(c, longest(c));
  const double grouped = attention_units(c, longest(c) * c.heads / c.kv_heads);
  const double backward = (3 + std::sqrt(static_cast<double>(c.value_dim))) * step;
  const std::pair<const std::vector<float>, double> wants[] = {
      {host.o.values(), slope * (3 * step + exact)},
      {device.d_query(host.d_q.values(), host.p.sequences), slope * (backward + exact)},
      {host.d_k.values(), slope * (backward + grouped)},
      {host.d_v.values(), slope * (backward + grouped)},
      {host.d_position, slope * (backward + exact)},
      {host.d_time, slope * (backward + exact)}};
  const int64_t queries = c.seeds > 0 ? c.seeds : host.p.rows;
  const int64_t rows[] = {host.p.rows, queries, host.p.k_tokens, host.p.k_tokens, 1, 1};
  for (int i = 0; i < 6; ++i) {
    const double share =
        share_used(got[i], wants[i].first, rows[i], wants[i].second, i < 4 ? 1.0 : table_floor(c));
    shares.add(share);
    EXPECT_LT(share, 1.0) << "result " << i << " of " << name_of(element) << ", f "
                          << static_cast<int>(activation) << ", " << c;
  }
}

}  // namespace tautline::kernels::testing
