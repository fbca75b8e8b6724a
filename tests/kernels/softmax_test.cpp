#include "tautline/kernels/softmax.h"

#include "tautline/kernels/softmax_loss.h"

#include "kernels/close.h"

namespace tautline::kernels {
namespace {

using namespace testing;

TEST(SoftmaxRows, BothInstructionSetsAgreeWithTheReference) {
  Shares shares("softmax rows");
  for (const int64_t rows : {0, 1, 5}) {
    for (const int64_t classes : {0, 1, 7, 8, 9, 16, 17, 1000}) {
      for (const bool extras : {false, true}) {
        const auto logits = normals(rows * classes, 1), log_q = normals(classes, 2);
        const auto extra = normals(rows, 3);
        std::vector<int64_t> column(classes), row_id(rows), target(rows);
        for (int64_t j = 0; j < classes; ++j) column[j] = j % 5;
        for (int64_t r = 0; r < rows; ++r) {
          row_id[r] = r;
          target[r] = r % 2 || classes == 0 ? -1 : (r * 31 + 5) % classes;
        }
        const auto run = [&](auto statistics, auto gradient) {
          std::vector<std::vector<float>> result(5, std::vector<float>(rows));
          result[0] = logits;
          SoftmaxRows p;
          p.logits = result[0].data();
          p.row_stride = p.classes = classes;
          p.rows = rows;
          p.max = result[1].data();
          p.sum = result[2].data();
          p.target_logit = result[3].data();
          p.target = target.data();
          p.scale = 4.0;
          p.weight = 0.5;
          if (extras) {
            p.log_q = log_q.data();
            p.column_id = column.data();
            p.row_id = row_id.data();
            p.extra = extra.data();
          }
          statistics(p);
          for (int64_t r = 0; r < rows; ++r) result[4][r] = result[1][r] + std::log(result[2][r]);
          p.lse = result[4].data();
          gradient(p);
          return result;
        };
        const auto want = run(softmax_statistics_ref, softmax_gradient_ref);
        for_each_isa(has_v4(), [&](const char* isa, bool use_v4) {
          SCOPED_TRACE(::testing::Message() << isa << " " << rows << " x " << classes);
          const auto got = run(
              [&](const SoftmaxRows& p) {
                use_v4 ? v4::softmax_statistics_cpu(p, 0, rows)
                       : v3::softmax_statistics_cpu(p, 0, rows);
              },
              [&](const SoftmaxRows& p) {
                use_v4 ? v4::softmax_gradient_cpu(p, 0, rows)
                       : v3::softmax_gradient_cpu(p, 0, rows);
              });
          // Exponents up to 40 carry 40 / 2 units of their own rounding; classes / 8 terms a lane.
          const double units = 50 + static_cast<double>(classes) / 8;
          // x is a difference of terms up to 16; a gradient one of probabilities, times the weight.
          const double floor[4] = {0.5, 16.0, 0.0, 16.0};
          for (int i = 0; i < 4; ++i) EXPECT_CLOSE(shares, got[i], want[i], rows, units, floor[i]);
        });
      }
    }
  }
}

/// The fused loss: what it must give by the row kernels' reference and plain products.
struct Loss {
  int64_t rows, classes, width;
  std::vector<float> h, items, max, sum, target_logit, d_h, d_items, packed, scores, scaled;
  std::vector<int64_t> target, repeat_first, repeat_last, repeat_column;
  std::vector<float> d_bias;
  float bias = -0.7f;
  SoftmaxLoss p;
  Loss(int64_t rows, int64_t classes, int64_t width)
      : rows(rows),
        classes(classes),
        width(width),
        h(normals(rows * width, 1, 0.3f)),
        items(normals(classes * width, 2, 0.3f)),
        max(rows),
        sum(rows),
        target_logit(rows),
        d_h(rows * width),
        d_items(classes * width),
        target(rows),
        d_bias(rows) {
    for (int64_t r = 0; r < rows; ++r) target[r] = classes > 0 ? r * 7919 % classes : -1;
    p.rows = rows;
    p.classes = classes;
    p.width = width;
    p.chunk = 2 * kLossRows;
    packed.resize(p.panels() * width * kLossPanel);
    scores.resize(p.panels() * p.chunk * kLossPanel);
    scaled.resize(p.chunk * width);
    p.h = h.data();
    p.items = items.data();
    p.target = target.data();
    p.scale = 3.0;
    p.weight = 0.5;
    p.max = max.data();
    p.sum = sum.data();
    p.target_logit = target_logit.data();
    p.d_h = d_h.data();
    p.d_items = d_items.data();
    p.packed = packed.data();
    p.scores = scores.data();
    p.scaled_h = scaled.data();
  }
  /// Histories of 0 to 6 distinct classes, prefixes of lists of three rows; some hold the target,
  /// every fifth class is another shard's.
  void add_repeats() {
    for (int64_t r = 0; r < rows; ++r) {
      if (r % 3 == 0) repeat_first.push_back(static_cast<int64_t>(repeat_column.size()));
      if (r % 3 > 0) repeat_first.push_back(repeat_first.back());
      for (int64_t k = 0; k < 2 * (r % 3) && 3 * (r % 3) + k < classes; ++k) {
        const int64_t j = (target[r - r % 3] + 3 * (r % 3 - 1) + k) % classes;
        repeat_column.push_back(k == 1 && r % 2 ? -1 : j);
      }
      repeat_last.push_back(static_cast<int64_t>(repeat_column.size()));
    }
    p.repeat = {repeat_first.data(), repeat_last.data(), repeat_column.data(), &bias,
                d_bias.data()};
  }
  Loss(const Loss&) = delete;

  void run(bool v4) {
    const auto blocks = [&](int64_t first) {
      return (std::min(p.chunk, rows - first) + kLossRows - 1) / kLossRows;
    };
    (v4 ? v4::softmax_loss_pack_cpu : v3::softmax_loss_pack_cpu)(p, 0, p.panels());
    for (int64_t first = 0; first < rows; first += p.chunk) {
      (v4 ? v4::softmax_loss_rows_cpu : v3::softmax_loss_rows_cpu)(p, first, 0, blocks(first));
      (v4 ? v4::softmax_loss_items_cpu : v3::softmax_loss_items_cpu)(p, first, 0, p.panels());
    }
  }

  void run_plain() {
    std::vector<float> logits(rows * classes), lse(rows);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < classes; ++j) {
        double total = 0;
        for (int64_t e = 0; e < width; ++e)
          total += double{h[r * width + e]} * items[j * width + e];
        logits[r * classes + j] = static_cast<float>(total);
      }
    SoftmaxRows q;
    q.logits = logits.data();
    q.row_stride = q.classes = classes;
    q.rows = rows;
    q.target = target.data();
    q.max = max.data();
    q.sum = sum.data();
    q.target_logit = target_logit.data();
    q.scale = p.scale;
    q.weight = p.weight * p.scale;
    q.repeat = p.repeat;
    if (q.repeat.first) repeat_bias_add_ref(q);
    softmax_statistics_ref(q);
    for (int64_t r = 0; r < rows; ++r) lse[r] = max[r] + std::log(sum[r]);
    q.lse = lse.data();
    softmax_gradient_ref(q);
    if (q.repeat.first) repeat_bias_sum_ref(q);
    multiply(logits);
  }

  void multiply(const std::vector<float>& g) {
    for (int64_t e = 0; e < width; ++e) {
      for (int64_t r = 0; r < rows; ++r) {
        double total = 0;
        for (int64_t j = 0; j < classes; ++j)
          total += double{g[r * classes + j]} * items[j * width + e];
        d_h[r * width + e] = static_cast<float>(total);
      }
      for (int64_t j = 0; j < classes; ++j) {
        double total = 0;
        for (int64_t r = 0; r < rows; ++r) total += double{g[r * classes + j]} * h[r * width + e];
        d_items[j * width + e] = static_cast<float>(total);
      }
    }
  }
};

TEST(SoftmaxLoss, BothInstructionSetsAgreeWithPlainProducts) {
  Shares statistics("softmax loss statistics"), gradients("softmax loss gradients");
  for (const auto [rows, classes, width] : std::vector<std::array<int64_t, 3>>{{0, 5, 16},
                                                                               {1, 0, 16},
                                                                               {1, 1, 16},
                                                                               {23, 31, 16},
                                                                               {24, 32, 32},
                                                                               {25, 33, 64},
                                                                               {48, 64, 80},
                                                                               {49, 65, 48},
                                                                               {97, 700, 64},
                                                                               {30, 40, 528}}) {
    for (const bool repeats : {false, true}) {
      Loss want(rows, classes, width);
      if (repeats) want.add_repeats();
      want.run_plain();
      for_each_isa(has_v4(), [&](const char* isa, bool use_v4) {
        SCOPED_TRACE(::testing::Message() << isa << " " << rows << " x " << classes << " x "
                                          << width << (repeats ? " with repeats" : ""));
        Loss got(rows, classes, width);
        if (repeats) got.add_repeats();
        got.run(use_v4);
        // Logits: width terms, sizes up to 10 in the exponent; sums of at most 32 + classes / 32
        // terms.
        const double units = 10 + 10 * std::sqrt(static_cast<double>(width)) + 32 + classes / 32.0;
        EXPECT_CLOSE(statistics, got.max, want.max, 1, units, 0.0);
        EXPECT_CLOSE(statistics, got.sum, want.sum, rows, units, 0.0);
        EXPECT_CLOSE(statistics, got.target_logit, want.target_logit, 1, units, 0.0);
        EXPECT_CLOSE(gradients, got.d_h, want.d_h, rows, units, 0.3);
        EXPECT_CLOSE(gradients, got.d_items, want.d_items, classes, units + 48, 0.3);
        // A difference of probabilities, times weight and scale.
        EXPECT_CLOSE(gradients, got.d_bias, want.d_bias, 1, units, 1.5);
      });
    }
  }
}

TEST(L2Normalize, BothInstructionSetsAgreeWithTheReference) {
  Shares shares("l2 normalize");
  for (const int64_t width : {1, 8, 15, 16, 17, 64, 100}) {
    auto x = normals(5 * width, 1);
    std::fill_n(x.begin() + width, width, 0.0f);  // a row of zeros stays zero
    const auto d_y = normals(5 * width, 2);
    const auto run = [&](auto forward, auto backward) {
      std::vector<std::vector<float>> result{std::vector<float>(x.size()), std::vector<float>(5),
                                             std::vector<float>(x.size())};
      L2Normalize p;
      p.x = x.data();
      p.y = result[0].data();
      p.norm = result[1].data();
      p.d_y = d_y.data();
      p.d_x = result[2].data();
      p.rows = 5;
      p.width = width;
      forward(p);
      backward(p);
      return result;
    };
    const auto want = run(l2_normalize_forward_ref, l2_normalize_backward_ref);
    for_each_isa(has_v4(), [&](const char* isa, bool use_v4) {
      SCOPED_TRACE(::testing::Message() << isa << " width " << width);
      const auto got = run(
          [&](const L2Normalize& p) {
            use_v4 ? v4::l2_normalize_forward_cpu(p, 0, 5) : v3::l2_normalize_forward_cpu(p, 0, 5);
          },
          [&](const L2Normalize& p) {
            use_v4 ? v4::l2_normalize_backward_cpu(p, 0, 5)
                   : v3::l2_normalize_backward_cpu(p, 0, 5);
          });
      for (int i = 0; i < 2; ++i) EXPECT_CLOSE(shares, got[i], want[i], 5, 8 + width / 8.0, 0.0);
      // d_y - (d_y . y) y cancels wholly at width 1; terms are |d_y| / |x|, up to 100 here.
      EXPECT_CLOSE(shares, got[2], want[2], 5, 8 + width / 8.0, 100.0);
    });
  }
}

}  // namespace
}  // namespace tautline::kernels
