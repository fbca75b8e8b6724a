// The softmax losses whose logits never reach memory (kernels/softmax_loss_sm90), and the kernel of
// a sampled softmax's positives, against the double references of softmax.h and softmax_positive.h.
#include <algorithm>

#include "tautline/kernels/scale.h"
#include "tautline/kernels/softmax.h"
#include "tautline/kernels/softmax_loss_sm90/loss.h"
#include "tautline/kernels/softmax_positive.h"

#include "gpu/dense_device.h"

namespace tautline::kernels {
namespace {

using namespace testing;

constexpr Element kHalves[] = {Element::kBFloat16, Element::kFloat16};

struct Case {
  int64_t rows, classes, width;
  Element element = Element::kBFloat16;
  bool sampled = false;  // log_q, extra and hits
  bool target = true;
  bool given = false;  // lse from outside
  bool gradient = true;
  bool float_items = false;
  float std = 1;                  // of a logit
  bool extra = true;              // where sampled
  int32_t multiprocessors = 132;  // few: a CTA has several rounds
  std::string name() const {
    return std::to_string(rows) + " x " + std::to_string(classes) + " x " + std::to_string(width) +
           " " + name_of(element) + (sampled ? " sampled" : "") + (given ? " given lse" : "") +
           (gradient ? "" : " statistics");
  }
};

struct Ids {
  std::vector<int64_t> column, row, target;
  explicit Ids(const Case& c) : column(c.classes), row(c.rows), target(c.rows) {
    // Duplicates; ids that agree in their low halves alone, in some blocks and not in others; a row
    // of nothing but hits where there is one class.
    for (int64_t j = 0; j < c.classes; ++j)
      column[j] = j / 2 * 3 - 30 + (j > 256 && j % 3 == 0 ? int64_t{1} << 32 : 0);
    for (int64_t r = 0; r < c.rows; ++r) {
      row[r] = column[r * 7 % c.classes] + (r % 5 == 4 ? int64_t{1} << 32 : 0);
      target[r] = r % 4 == 3 ? -1 : (r * 31 + 5) % c.classes;
    }
  }
};

/// What the reference makes of a case, and the largest error of a logit in FP32.
struct Reference {
  std::vector<float> max, sum, target_logit, weights, lse;  // weights [N, V]: gradients of logits
  double logit_error = 0;

  Reference(const Case& c, const Input& h, const Input& items, const Ids& ids, SoftmaxRows p)
      : max(c.rows), sum(c.rows), target_logit(c.rows, 7.f), weights(c.rows * c.classes) {
    double size = 0;
    for (int64_t r = 0; r < c.rows; ++r)
      for (int64_t j = 0; j < c.classes; ++j) {
        double dot = 0, terms = 0;
        for (int64_t k = 0; k < c.width; ++k) {
          const double x = double{h.values[r * c.width + k]} * items.values[j * c.width + k];
          dot += x, terms += std::abs(x);
        }
        weights[r * c.classes + j] = static_cast<float>(dot);
        size = std::max(size, terms * p.scale);
      }
    p.logits = weights.data();
    p.row_stride = p.classes = c.classes;
    p.rows = c.rows;
    if (c.target) p.target = ids.target.data();
    if (c.sampled) p.column_id = ids.column.data(), p.row_id = ids.row.data();
    p.max = max.data(), p.sum = sum.data(), p.target_logit = target_logit.data();
    softmax_statistics_ref(p);
    for (int64_t r = 0; r < c.rows; ++r) {
      lse.push_back(max[r] + std::log(sum[r]) + (c.given ? 0.5f : 0.f));
      if (!std::isfinite(lse[r])) lse[r] = 0;  // nothing but hits: exponentials are 0
      size = std::max(size, std::abs(double{lse[r]}));
    }
    p.lse = lse.data();
    softmax_gradient_ref(p);
    // An accumulator takes 16 terms a time, and is cut rather than rounded; what a sum starts from
    // and the scaling are some units more. log_q is below 6.
    logit_error = (static_cast<double>(c.width) / 8 + 16) * kEps * (size + 6);
  }

  /// sum_b weights_ab y_b of rows (or items), and of the terms' sizes: (|p| + [target]) |y|.
  std::pair<std::vector<float>, std::vector<double>> gradient(const Case& c, bool rows,
                                                              const Input& y,
                                                              const Ids& ids) const {
    const int64_t count = rows ? c.rows : c.classes, many = rows ? c.classes : c.rows;
    std::vector<double> sum(count * c.width), size(count * c.width);
    for (int64_t a = 0; a < count; ++a)
      for (int64_t b = 0; b < many; ++b) {
        const int64_t r = rows ? a : b, j = rows ? b : a;
        const double w = weights[r * c.classes + j];
        const double terms = std::abs(w) + (c.target && ids.target[r] == j ? 2 * kWeight : 0);
        for (int64_t k = 0; k < c.width; ++k) {
          sum[a * c.width + k] += w * y.values[b * c.width + k];
          size[a * c.width + k] += terms * std::abs(y.values[b * c.width + k]);
        }
      }
    return {{sum.begin(), sum.end()}, size};
  }
  static constexpr double kWeight = 0.3;
};

void run(const Case& c) {
  const float std = std::sqrt(c.std / std::sqrt(static_cast<float>(c.width)));
  const Input h(c.element, c.rows * c.width, 1, std), items(c.element, c.classes * c.width, 2, std);
  const Input log_q(Element::kFloat32, c.classes, 3), extra(Element::kFloat32, c.rows, 4, c.std);
  const Ids ids(c);
  SoftmaxRows rows;
  rows.scale = 0.7;
  rows.weight = Reference::kWeight;
  if (c.sampled) rows.log_q = log_q.values.data();
  if (c.sampled && c.extra) rows.extra = extra.values.data();
  const Reference want(c, h, items, ids, rows);

  const Element items_element = c.float_items ? Element::kFloat32 : c.element;
  const DeviceArray<int64_t> column(ids.column), row(ids.row), target(ids.target);
  const DeviceArray<float> max(c.rows), sum(c.rows), hit(std::vector<float>(c.rows, 7.f)),
      lse(want.lse);
  const Output d_h(c.element, c.rows * c.width), d_items(items_element, c.classes * c.width);
  SoftmaxLossSm90 p;
  p.h = h.device.data(), p.items = items.device.data();
  if (c.sampled) {
    p.log_q = reinterpret_cast<const float*>(log_q.device.data());
    if (c.extra) p.extra = reinterpret_cast<const float*>(extra.device.data());
    p.column_id = column.data(), p.row_id = row.data();
  }
  if (c.target) p.target = target.data();
  if (c.given) p.lse = lse.data();
  p.max = max.data(), p.sum = sum.data(), p.target_logit = hit.data();
  if (c.gradient) p.d_h = d_h.device.data(), p.d_items = d_items.device.data();
  p.rows = c.rows, p.classes = c.classes, p.width = c.width;
  p.scale = 0.7f, p.weight = Reference::kWeight;
  p.element = c.element, p.items_element = items_element;
  p.multiprocessors = c.multiprocessors;
  ASSERT_EQ(softmax_loss_sm90_refuses(p), nullptr);
  const DeviceArray<uint8_t> workspace(static_cast<size_t>(softmax_loss_sm90_workspace(p)));
  p.workspace = workspace.data();
  softmax_loss_sm90(p);
  gpu::expect_success(cudaDeviceSynchronize());

  const double error = want.logit_error;
  if (!c.given) {
    expect_close(max.host(), want.max, 4 * kEps, flat(error), c.name() + " max");
    // A lane adds classes / 4 exponentials in turn, each off by the two logits' errors.
    const double relative = 2 * error + (static_cast<double>(c.classes) / 4 + 64) * kEps;
    expect_close(sum.host(), want.sum, relative, flat(0), c.name() + " sum");
    if (c.target)
      expect_close(hit.host(), want.target_logit, 4 * kEps, flat(error), c.name() + " target");
  }
  if (!c.gradient) return;
  // Twice what rounding the exponentials to 16 bits costs the sum (half_ulp is twice the rounding's
  // largest error), and the logits' errors; then the result's own rounding. FP16 exponentials below
  // its normal range are off by 2^-25, in the items' pass by 2^-35.
  const double u = half_ulp(c.element) + 2 * error + 64 * kEps;
  const bool half = c.element == Element::kFloat16;
  const auto [want_h, size_h] = want.gradient(c, true, items, ids);
  const auto [want_items, size_items] = want.gradient(c, false, h, ids);
  const double floor_h = half ? 0x1p-25 * 5 * std * static_cast<double>(c.classes) : 0;
  const double floor_items = half ? 0x1p-35 * 5 * std * static_cast<double>(c.rows) : 0;
  expect_close(
      d_h.values(), want_h, half_ulp(c.element), [&](size_t i) { return u * size_h[i] + floor_h; },
      c.name() + " d_h");
  expect_close(
      d_items.values(), want_items, half_ulp(items_element),
      [&](size_t i) { return u * size_items[i] + floor_items; }, c.name() + " d_items");
}

class SoftmaxLossSm90Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    cudaDeviceProp card;
    gpu::expect_success(cudaGetDeviceProperties(&card, 0));
    if (card.major != 9 || card.minor != 0) GTEST_SKIP() << "not a Hopper card";
  }
};

TEST_F(SoftmaxLossSm90Gpu, FollowsTheReference) {
  constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1},    {63, 7},   {64, 127},
                                                     {65, 128}, {257, 65}, {129, 1025}};
  for (const Element e : kHalves)
    for (const int64_t width : {8, 40, 64, 96, 128, 136, 200, 256})
      for (const auto& [rows, classes] : kShapes)
        for (const bool sampled : {false, true})
          run({rows, classes, width, e, sampled, /*target=*/!sampled});
}

TEST_F(SoftmaxLossSm90Gpu, TakesEveryCorrectionTogether) {
  for (const Element e : kHalves)
    for (const int64_t width : {64, 128, 256}) {
      Case all{140, 300, width, e, true};
      run(all);
      all.float_items = true;
      run(all);
      all.gradient = false;
      run(all);
      Case given{140, 300, width, e};
      given.given = true;
      run(given);
      given.sampled = true;
      run(given);
      Case statistics{140, 300, width, e};
      statistics.gradient = false;
      run(statistics);
    }
}

TEST_F(SoftmaxLossSm90Gpu, BearsSeveralRoundsOfACta) {
  for (const Element e : kHalves)
    for (const int64_t width : {64, 128, 256})
      for (const int32_t multiprocessors : {1, 2, 3})
        for (const bool sampled : {false, true}) {
          Case c{777, 651, width, e, sampled, /*target=*/!sampled};
          c.multiprocessors = multiprocessors;
          run(c);
        }
}

TEST_F(SoftmaxLossSm90Gpu, RowsOfNothingButHitsHaveNoGradient) {
  for (const int64_t width : {64, 128, 256})
    for (const bool given : {false, true}) {
      Case c{65, 1, width, Element::kBFloat16, /*sampled=*/true, /*target=*/false, given};
      c.extra = false;
      run(c);
    }
}

TEST_F(SoftmaxLossSm90Gpu, RefusesItemsOfTheOtherHalf) {
  SoftmaxLossSm90 p;
  p.rows = p.classes = p.width = 8;
  EXPECT_EQ(softmax_loss_sm90_refuses(p), nullptr);
  p.items_element = Element::kFloat16;
  EXPECT_NE(softmax_loss_sm90_refuses(p), nullptr);
}

// Where the model is certain what is left of exp(x - lse) - 1 is small, and so must d_h be: an item
// per axis, and rows that lie 20 times their own item's length along it.
TEST_F(SoftmaxLossSm90Gpu, CertainRowsHaveTheGradientThatIsLeft) {
  constexpr int64_t kCount = 200, kWidth = 256;
  for (const float length : {8.f, 12.f, 20.f}) {
    std::vector<BFloat16> rows(kCount * kWidth, from_float<BFloat16>(0)), axes = rows;
    std::vector<int64_t> targets(kCount);
    for (int64_t r = 0; r < kCount; ++r) {
      rows[r * kWidth + r] = from_float<BFloat16>(length);
      axes[r * kWidth + r] = from_float<BFloat16>(1);
      targets[r] = r;
    }
    const DeviceArray<BFloat16> h(rows), items(axes), d_h(rows.size()), d_items(rows.size());
    const DeviceArray<int64_t> target(targets);
    const DeviceArray<float> max(kCount), sum(kCount), hit(kCount);
    SoftmaxLossSm90 p;
    p.h = h.data(), p.items = items.data(), p.target = target.data();
    p.max = max.data(), p.sum = sum.data(), p.target_logit = hit.data();
    p.d_h = d_h.data(), p.d_items = d_items.data();
    p.rows = p.classes = kCount, p.width = kWidth;
    const DeviceArray<uint8_t> workspace(static_cast<size_t>(softmax_loss_sm90_workspace(p)));
    p.workspace = workspace.data();
    softmax_loss_sm90(p);
    gpu::expect_success(cudaDeviceSynchronize());
    const double others = (kCount - 1) * std::exp(-double{length}), left = -others / (1 + others);
    const auto got = d_h.host();
    for (int64_t r = 0; r < kCount; ++r)  // two roundings, and exp(x - lse) of sums in FP32
      EXPECT_NEAR(to_float(got[r * kWidth + r]), left, 0x1p-8 * -left + 64 * kEps) << r;
  }
}

TEST_F(SoftmaxLossSm90Gpu, BearsLargeLogits) {
  for (const int64_t width : {64, 128, 256})
    for (const bool sampled : {false, true}) {
      Case c{200, 500, width, Element::kBFloat16, sampled};
      c.std = 3000;  // up to 1e4
      run(c);
    }
}

TEST_F(SoftmaxLossSm90Gpu, GivesTheSameBitsEveryTime) {
  constexpr int64_t kRows = 20000, kClasses = 1024;
  for (const int64_t width : {64, 128, 256}) {
    const Input h(Element::kBFloat16, kRows * width, 1, 0.3f),
        items(Element::kBFloat16, kClasses * width, 2, 0.3f);
    std::vector<int64_t> targets(kRows);
    for (int64_t r = 0; r < kRows; ++r) targets[r] = r * 31 % kClasses;
    const DeviceArray<int64_t> target(targets);
    std::vector<uint8_t> first;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const DeviceArray<float> max(kRows), sum(kRows), hit(kRows);
      const DeviceArray<uint8_t> d_h(kRows * width * 2), d_items(kClasses * width * 2);
      SoftmaxLossSm90 p;
      p.h = h.device.data(), p.items = items.device.data(), p.target = target.data();
      p.max = max.data(), p.sum = sum.data(), p.target_logit = hit.data();
      p.d_h = d_h.data(), p.d_items = d_items.data();
      p.rows = kRows, p.classes = kClasses, p.width = width;
      const DeviceArray<uint8_t> workspace(static_cast<size_t>(softmax_loss_sm90_workspace(p)));
      p.workspace = workspace.data();
      softmax_loss_sm90(p);
      std::vector<uint8_t> bytes = d_h.host();
      for (const uint8_t x : d_items.host()) bytes.push_back(x);
      for (const auto* x : {&max, &sum, &hit}) {
        const std::vector<float> values = x->host();
        const auto* raw = reinterpret_cast<const uint8_t*>(values.data());
        bytes.insert(bytes.end(), raw, raw + 4 * values.size());
      }
      if (repeat == 0) first = bytes;
      EXPECT_TRUE(bytes == first) << width;
    }
  }
}

TEST(SoftmaxPositiveGpu, FollowsTheReferenceBothWays) {
  constexpr int64_t kRows = 70;
  for (const int64_t width : {1, 7, 8, 64, 72, 256, 1000})
    for (const Element e : kElements)
      for (const Element other : kElements)
        for (const bool log : {false, true}) {
          const int64_t n = kRows * width;
          const float std = 1 / std::sqrt(static_cast<float>(width));
          const Input h(e, n, 1), positive(other, n, 2, std), d_h(e, n, 3);
          const Input log_q(Element::kFloat32, kRows, 4);
          std::vector<float> own(kRows), max(kRows), sum(kRows), loss(kRows), want_h = d_h.values,
                                                                              want_positive(n);
          SoftmaxPositive p;
          p.h = h.values.data(), p.positive = positive.values.data();
          p.own = own.data(), p.loss = loss.data();
          p.log_q = log ? log_q.values.data() : nullptr;
          p.rows = kRows, p.width = width;
          p.scale = 1.7;
          p.d_h = want_h.data(), p.d_positive = want_positive.data();
          softmax_positive_forward_ref(p);
          for (int64_t r = 0; r < kRows; ++r) {  // from certain to hopeless
            max[r] = own[r] + static_cast<float>(r % 3);
            sum[r] = 1 + static_cast<float>(r % 7) * 0.01f;
          }
          p.max = max.data(), p.sum = sum.data();
          softmax_positive_backward_ref(p);

          const DeviceArray<float> d_own(kRows), d_max(max), d_sum(sum), d_loss(kRows);
          const Output got_h(e, n), got_positive(other, n);
          gpu::expect_success(cudaMemcpy(got_h.device.data(), d_h.device.data(), d_h.bytes.size(),
                                         cudaMemcpyDeviceToDevice));
          SoftmaxPositive g = p;
          g.h = h.device.data(), g.positive = positive.device.data();
          g.own = d_own.data(), g.loss = d_loss.data();
          g.log_q = log ? reinterpret_cast<const float*>(log_q.device.data()) : nullptr;
          g.max = d_max.data(), g.sum = d_sum.data();
          g.d_h = got_h.device.data(), g.d_positive = got_positive.device.data();
          g.h_element = e, g.positive_element = other;
          const std::string name =
              std::to_string(width) + " " + name_of(e) + " beside " + name_of(other);
          softmax_positive_forward_cuda(g);
          // Terms below 25 / sqrt(width).
          const double error =
              row_bound(width) * 1.7 * 25 * std::sqrt(static_cast<double>(width)) + 16 * kEps;
          expect_close(d_own.host(), own, 4 * kEps, flat(error), name + " own");
          gpu::expect_success(
              cudaMemcpy(d_own.data(), own.data(), 4 * kRows, cudaMemcpyHostToDevice));
          softmax_positive_backward_cuda(g);
          // max and own differ by 3 at most; both may be some 20, so theirs is exact to 2^-20.
          expect_close(d_loss.host(), loss, 16 * kEps, flat(64 * kEps), name + " loss");
          const auto slope = flat(1.7 * 128 * kEps * 6);
          expect_close(got_h.values(), want_h, half_ulp(e) + 64 * kEps, slope, name + " d_h");
          expect_close(got_positive.values(), want_positive, half_ulp(other) + 64 * kEps, slope,
                       name + " d_positive");
        }
}

TEST(ScaleGpu, RoundsEveryProductOnce) {
  for (const int64_t n : {0, 1, 7, 8, 512, 4096, 4097, 100000})
    for (const Element e : kElements) {
      const Input x(e, n, 1), a(Element::kFloat32, 1, 2);
      const Output y(e, n);
      Scale p;
      p.x = x.device.data(), p.a = reinterpret_cast<const float*>(a.device.data());
      p.y = y.device.data();
      p.count = n;
      p.element = e;
      scale_cuda(p);
      std::vector<float> want = x.values;
      for (float& v : want) v *= a.values[0];
      expect_close(y.values(), want, half_ulp(e), flat(0), std::to_string(n) + " " + name_of(e));
    }
}

}  // namespace
}  // namespace tautline::kernels
