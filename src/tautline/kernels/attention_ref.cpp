// The specification of attention.h: plain loops in double. Tests only.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tautline/kernels/attention.h"

namespace tautline::kernels {
namespace {

float& at(const HeadsView& view, int64_t t, int64_t h, int64_t d) {
  return static_cast<float*>(view.data)[t * view.token_stride + h * view.head_stride + d];
}

struct Sequence {
  int64_t q_begin, q_length, k_begin, k_length;
  int64_t keys_of(int64_t i, bool causal) const {
    return causal ? std::max<int64_t>(0, i + 1 + k_length - q_length) : k_length;
  }
};
Sequence sequence(const JaggedAttention& p, int64_t b) {
  return {p.q_offsets[b], p.q_offsets[b + 1] - p.q_offsets[b], p.k_offsets[b],
          p.k_offsets[b + 1] - p.k_offsets[b]};
}

double dot(const HeadsView& a, int64_t i, const HeadsView& b, int64_t j, int64_t h, int64_t dim) {
  double total = 0;
  for (int64_t d = 0; d < dim; ++d) total += double{at(a, i, h, d)} * at(b, j, h, d);
  return total;
}

}  // namespace

void jagged_attention_forward_ref(const JaggedAttention& p) {
  for (int64_t b = 0; b < p.sequences; ++b) {
    const Sequence s = sequence(p, b);
    for (int64_t h = 0; h < p.heads; ++h) {
      for (int64_t i = 0; i < s.q_length; ++i) {
        const int64_t keys = s.keys_of(i, p.causal), row = s.q_begin + i;
        std::vector<double> score(keys);
        double max = -std::numeric_limits<double>::infinity(), sum = 0;
        for (int64_t j = 0; j < keys; ++j) {
          score[j] = p.scale * dot(p.q, row, p.k, s.k_begin + j, h, p.head_dim);
          max = std::max(max, score[j]);
        }
        for (double& x : score) sum += x = std::exp(x - max);
        for (int64_t d = 0; d < p.head_dim; ++d) {
          double o = 0;
          for (int64_t j = 0; j < keys; ++j) o += score[j] / sum * at(p.v, s.k_begin + j, h, d);
          at(p.o, row, h, d) = static_cast<float>(o);
        }
        p.lse[h * p.q_tokens + row] = static_cast<float>(max + std::log(sum));
      }
    }
  }
}

// P = exp(scale q k - lse), dP = d_o v, dS = P (dP - d_o . o) scale; d_q = dS k, d_k = dS' q,
// d_v = P' d_o.
void jagged_attention_backward_ref(const JaggedAttention& p) {
  for (int64_t b = 0; b < p.sequences; ++b) {
    const Sequence s = sequence(p, b);
    for (int64_t h = 0; h < p.heads; ++h) {
      std::vector<double> d_k(s.k_length * p.head_dim), d_v(d_k.size());
      for (int64_t i = 0; i < s.q_length; ++i) {
        const int64_t row = s.q_begin + i;
        std::vector<double> d_q(p.head_dim);
        const double delta = dot(p.d_o, row, p.o, row, h, p.head_dim);
        for (int64_t j = 0; j < s.keys_of(i, p.causal); ++j) {
          const int64_t key = s.k_begin + j;
          const double probability = std::exp(p.scale * dot(p.q, row, p.k, key, h, p.head_dim) -
                                              p.lse[h * p.q_tokens + row]);
          const double d_score =
              probability * (dot(p.d_o, row, p.v, key, h, p.head_dim) - delta) * p.scale;
          for (int64_t d = 0; d < p.head_dim; ++d) {
            d_q[d] += d_score * at(p.k, key, h, d);
            d_k[j * p.head_dim + d] += d_score * at(p.q, row, h, d);
            d_v[j * p.head_dim + d] += probability * at(p.d_o, row, h, d);
          }
        }
        for (int64_t d = 0; d < p.head_dim; ++d) at(p.d_q, row, h, d) = static_cast<float>(d_q[d]);
      }
      for (int64_t j = 0; j < s.k_length; ++j) {
        for (int64_t d = 0; d < p.head_dim; ++d) {
          at(p.d_k, s.k_begin + j, h, d) = static_cast<float>(d_k[j * p.head_dim + d]);
          at(p.d_v, s.k_begin + j, h, d) = static_cast<float>(d_v[j * p.head_dim + d]);
        }
      }
    }
  }
}

}  // namespace tautline::kernels
