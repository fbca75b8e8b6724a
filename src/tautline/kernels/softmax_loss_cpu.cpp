// softmax_loss.h. Three small matrix products with their accumulators in registers:
//   logits   kMicro rows x 32 classes, over E: h packed [E][kMicro] and broadcast, a panel's items
//   d_h      6 rows x up to 4 vectors of channels, over the 32 classes of a panel
//   d_items  4 classes x up to 4 vectors of channels, over the rows of the chunk
// Scores lie panel by panel, [panel][row][32], because a row-major matrix has its rows on the same
// few cache sets (V * 4 bytes apart), which the third product would thrash.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tautline/kernels/simd.h"
#include "tautline/kernels/softmax_loss.h"

namespace tautline::kernels::TAUTLINE_ISA {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kVectors = kLossPanel / kLanes;    // of a panel's row
constexpr int kMicro = kLanes == 16 ? 12 : 3;    // rows whose accumulators fit the registers
constexpr int kChannels = kLanes == 16 ? 4 : 2;  // vectors of channels held at once
static_assert(kLossRows % kMicro == 0 && kLossRows % 6 == 0);

/// The rows of one task: their first row in the matrix and in the chunk, and how many.
struct Block {
  int64_t row, place, rows;
};

/// scale * h of kMicro rows as [E][kMicro]; rows past the end are zero.
void pack_rows(const SoftmaxLoss& p, const Block& block, int64_t first, float* out) {
  const float scale = static_cast<float>(p.scale);
  for (int r = 0; r < kMicro; ++r) {
    const bool real = first + r < block.rows;
    const float* h = p.h + (block.row + first + r) * p.width;
    for (int64_t e = 0; e < p.width; ++e) out[e * kMicro + r] = real ? h[e] * scale : 0.0f;
  }
}

/// Products of kMicro rows with one panel: score[r][0..32).
void panel_logits(const float* rows, const float* panel, int64_t width, float* score) {
  Vf sum[kMicro][kVectors] = {};
  for (int64_t e = 0; e < width; ++e) {
    Vf item[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) item[v] = load(panel + e * kLossPanel + v * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kMicro; ++r) {
      const Vf h = splat(rows[e * kMicro + r]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] += h * item[v];
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kMicro; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(score + r * kLossPanel + v * kLanes, sum[r][v]);
}

float* scores_of(const SoftmaxLoss& p, int64_t panel, int64_t place) {
  return p.scores + (panel * p.chunk + place) * kLossPanel;
}

void make_logits(const SoftmaxLoss& p, const Block& block) {
  alignas(64) float few[kMicro * 512];
  float* packed = few;
  float* many = nullptr;
  if (p.width > 512) packed = many = new float[kMicro * p.width];
  for (int64_t first = 0; first < kLossRows; first += kMicro) {
    pack_rows(p, block, first, packed);
    for (int64_t panel = 0; panel < p.panels(); ++panel)
      panel_logits(packed, p.packed + panel * p.width * kLossPanel, p.width,
                   scores_of(p, panel, block.place + first));
  }
  delete[] many;
}

/// body(row of the block, score) for the classes of each row's history that are here.
template <class Body>
void for_repeats(const SoftmaxLoss& p, const Block& block, Body&& body) {
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t row = block.row + r;
    for (int64_t i = p.repeat.first[row]; i < p.repeat.last[row]; ++i) {
      const int64_t j = p.repeat.column[i];
      if (j >= 0) body(r, scores_of(p, j / kLossPanel, block.place + r)[j % kLossPanel]);
    }
  }
}

void add_repeat_bias(const SoftmaxLoss& p, const Block& block) {
  const float bias = *p.repeat.bias * static_cast<float>(p.scale);
  for_repeats(p, block, [&](int64_t, float& score) { score += bias; });
}

/// After normalise: the scores are gradients but for the row's factor.
void gradient_of_repeat_bias(const SoftmaxLoss& p, const Block& block, const float* factor) {
  float sum[kLossRows] = {};
  for_repeats(p, block, [&](int64_t r, float& score) { sum[r] += score; });
  for (int64_t r = 0; r < block.rows; ++r) p.repeat.d_bias[block.row + r] = sum[r] * factor[r];
}

/// One row of one panel: log q, accidental hits, and -inf past the last class.
void correct(const SoftmaxLoss& p, int64_t panel, int64_t row, float* score) {
  const int64_t first = panel * kLossPanel;
  const int64_t count = std::min(kLossPanel, p.classes - first);
  if (p.log_q) {
    for_lanes(count, [&](int64_t j, int n) {
      store(score + j, load(score + j) - load_some(p.log_q + first + j, n));
    });
  }
  for (int64_t j = count; j < kLossPanel; ++j) score[j] = -kInfinity;
  if (p.column_id && p.row_id) {
    const int64_t* ids = p.column_id + first;
    for (int64_t j = 0; j < count; ++j)
      if (ids[j] == p.row_id[row]) score[j] = -kInfinity;
  }
}

/// Corrects the logits of the block; max of each row.
void find_max(const SoftmaxLoss& p, const Block& block, float* max) {
  Vf highest[kLossRows];
  for (Vf& v : highest) v = splat(-kInfinity);
  for (int64_t panel = 0; panel < p.panels(); ++panel) {
    const bool plain = !p.log_q && !p.row_id && (panel + 1) * kLossPanel <= p.classes;
    for (int64_t r = 0; r < block.rows; ++r) {
      float* score = scores_of(p, panel, block.place + r);
      if (!plain) correct(p, panel, block.row + r, score);
      for (int v = 0; v < kVectors; ++v) highest[r] = vmax(load(score + v * kLanes), highest[r]);
    }
  }
  for (int64_t r = 0; r < block.rows; ++r) {
    max[r] = reduce_max(highest[r]);
    if (p.extra) max[r] = std::max(max[r], p.extra[block.row + r]);
  }
}

float* target_score(const SoftmaxLoss& p, const Block& block, int64_t r) {
  const int64_t target = p.target ? p.target[block.row + r] : -1;
  if (target < 0) return nullptr;
  return scores_of(p, target / kLossPanel, block.place + r) + target % kLossPanel;
}

/// Scores to exp(x - shift); sum of each row.
void exponentiate(const SoftmaxLoss& p, const Block& block, const float* shift, float* sum) {
  Vf total[kLossRows][kVectors] = {};
  for (int64_t panel = 0; panel < p.panels(); ++panel) {
    for (int64_t r = 0; r < block.rows; ++r) {
      float* score = scores_of(p, panel, block.place + r);
      for (int v = 0; v < kVectors; ++v) {
        const Vf e = vexp(load(score + v * kLanes) - shift[r]);
        total[r][v] += e;
        store(score + v * kLanes, e);
      }
    }
  }
  for (int64_t r = 0; r < block.rows; ++r) {
    Vf all = total[r][0];
    for (int v = 1; v < kVectors; ++v) all += total[r][v];
    sum[r] = reduce_add(all);
  }
}

/// Statistics of the block, P in place of its logits, and the factor that P still lacks.
void normalise(const SoftmaxLoss& p, const Block& block, float* factor) {
  float max[kLossRows] = {}, sum[kLossRows] = {}, shift[kLossRows] = {};
  find_max(p, block, max);
  for (int64_t r = 0; r < block.rows; ++r) {
    // A row without any class has max = -inf: its P is 0, not NaN.
    shift[r] = p.lse ? p.lse[block.row + r] : max[r] == -kInfinity ? 0.0f : max[r];
    const float* score = target_score(p, block, r);
    if (!p.lse && score) p.target_logit[block.row + r] = *score;
  }
  exponentiate(p, block, shift, sum);
  const float weight = static_cast<float>(p.weight * p.scale);
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t row = block.row + r;
    if (!p.lse) {
      if (p.extra) sum[r] += std::exp(p.extra[row] - shift[r]);
      p.max[row] = max[r];
      p.sum[row] = sum[r];
    }
    const float whole = p.lse ? 1.0f : sum[r];
    factor[r] = whole == 0.0f ? 0.0f : weight / whole;
    if (float* score = target_score(p, block, r); score && p.d_h) *score -= whole;
  }
}

/// out[r][:] += sum_j score[r][j] item[j][:] for kRows rows and V vectors of channels.
template <int kRows, int V>
void rows_times_items(const float* score, const float* item, int64_t count, int64_t width,
                      float* out) {
  Vf sum[kRows][V] = {};  // of this panel alone: sums of V / 32 partial sums round less
  for (int64_t j = 0; j < count; ++j) {
    Vf channel[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) channel[v] = load(item + j * width + v * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const Vf s = splat(score[r * kLossPanel + j]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] += s * channel[v];
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      float* place = out + r * width + v * kLanes;
      store(place, load(place) + sum[r][v]);
    }
  }
}

/// out[j][:] += sum_r score[r][j] h[r][:] for kItems classes and V vectors of channels.
template <int kItems, int V>
void items_times_rows(const float* score, const float* h, int64_t rows, int64_t width, float* out) {
  Vf sum[kItems][V] = {};
  for (int64_t r = 0; r < rows; ++r) {
    Vf channel[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) channel[v] = load(h + r * width + v * kLanes);
#pragma GCC unroll 6
    for (int j = 0; j < kItems; ++j) {
      const Vf s = splat(score[r * kLossPanel + j]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[j][v] += s * channel[v];
    }
  }
#pragma GCC unroll 6
  for (int j = 0; j < kItems; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      float* place = out + j * width + v * kLanes;
      store(place, load(place) + sum[j][v]);
    }
  }
}

/// Rows that d_items takes at once: their h and scores stay in the first cache level.
constexpr int64_t kItemRows = 64;

/// body(offset, constant V) over the channels, kChannels vectors at a time.
template <class Body>
void for_channels(int64_t width, Body&& body) {
  int64_t e = 0;
  for (; e + kChannels * kLanes <= width; e += kChannels * kLanes)
    body(e, std::integral_constant<int, kChannels>());
  for (; e < width; e += kLanes) body(e, std::integral_constant<int, 1>());
}

void gradient_of_rows(const SoftmaxLoss& p, const Block& block, const float* factor) {
  constexpr int kRows = 6;
  // Whole groups are computed, so the last ones need a place of their own.
  float* d_h = p.scaled_h + block.place * p.width;
  std::fill_n(d_h, kLossRows * p.width, 0.0f);
  for (int64_t panel = 0; panel < p.panels(); ++panel) {
    const int64_t first = panel * kLossPanel, count = std::min(kLossPanel, p.classes - first);
    for (int64_t r = 0; r < kLossRows; r += kRows) {
      const float* score = scores_of(p, panel, block.place + r);
      for_channels(p.width, [&](int64_t e, auto vectors) {
        rows_times_items<kRows, decltype(vectors)::value>(score, p.items + first * p.width + e,
                                                          count, p.width, d_h + r * p.width + e);
      });
    }
  }
  for (int64_t r = 0; r < block.rows; ++r) {
    for (int64_t e = 0; e < p.width; e += kLanes) {
      const int64_t i = (block.row + r) * p.width + e;
      store(p.d_h + i, load(d_h + r * p.width + e) * factor[r]);
      store(d_h + r * p.width + e, load(p.h + i) * factor[r]);
    }
  }
}

template <int kItems>
void gradient_of_items(const SoftmaxLoss& p, int64_t panel, int64_t j, int64_t first,
                       int64_t rows) {
  const int64_t item = panel * kLossPanel + j;
  for_channels(p.width, [&](int64_t e, auto vectors) {
    items_times_rows<kItems, decltype(vectors)::value>(scores_of(p, panel, first) + j,
                                                       p.scaled_h + first * p.width + e, rows,
                                                       p.width, p.d_items + item * p.width + e);
  });
}

}  // namespace

void softmax_loss_pack_cpu(const SoftmaxLoss& p, int64_t begin, int64_t end) {
  for (int64_t panel = begin; panel < end; ++panel) {
    float* out = p.packed + panel * p.width * kLossPanel;
    const int64_t first = panel * kLossPanel, count = std::min(kLossPanel, p.classes - first);
    for (int64_t e = 0; e < p.width; ++e) {
      for (int64_t j = 0; j < kLossPanel; ++j)
        out[e * kLossPanel + j] = j < count ? p.items[(first + j) * p.width + e] : 0.0f;
    }
  }
}

void softmax_loss_rows_cpu(const SoftmaxLoss& p, int64_t first_row, int64_t begin, int64_t end) {
  for (int64_t index = begin; index < end; ++index) {
    const int64_t place = index * kLossRows, row = first_row + place;
    const Block block{row, place, std::min(kLossRows, p.rows - row)};
    make_logits(p, block);
    if (p.repeat.first) add_repeat_bias(p, block);
    float factor[kLossRows] = {};
    normalise(p, block, factor);
    if (!p.d_h) continue;
    gradient_of_rows(p, block, factor);
    if (p.repeat.first) gradient_of_repeat_bias(p, block, factor);
  }
}

void softmax_loss_items_cpu(const SoftmaxLoss& p, int64_t first_row, int64_t begin, int64_t end) {
  const int64_t rows = std::min(p.chunk, p.rows - first_row);
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t count = std::min(kLossPanel, p.classes - panel * kLossPanel);
    for (int64_t first = 0; first < rows; first += kItemRows) {
      const int64_t some = std::min(kItemRows, rows - first);
      int64_t j = 0;
      for (; j + 4 <= count; j += 4) gradient_of_items<4>(p, panel, j, first, some);
      for (; j < count; ++j) gradient_of_items<1>(p, panel, j, first, some);
    }
  }
}

}  // namespace tautline::kernels::TAUTLINE_ISA
