// Forward and backward of every operator of one SASRec step on the CPU, ours beside PyTorch's
// formula for the same thing in the same run: best of N, so that a busy machine disturbs the ratios
// little.
//
// The step is that of a small log: T tokens in sequences of about 6 (and one long one), width 64, 2
// heads, feed-forward 256, V items, normalised full softmax. PyTorch's attention runs on sequences
// padded to the longest, as a hand-written model would.
//
//   bench_cpu_block [--tokens 1686] [--items 8687] [--threads 1] [--repeat 15] [--json FILE]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <malloc.h>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include "tautline/base/error.h"
#include "tautline/ops/ops.h"

namespace tautline {
namespace {

using at::Tensor;
using Call = std::function<Tensor()>;

struct Arguments {
  int64_t tokens = 1686, items = 8687;
  int threads = 1, repeat = 15;
  std::string json;
};

Arguments parse(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--tokens")
      a.tokens = std::stoll(value);
    else if (flag == "--items")
      a.items = std::stoll(value);
    else if (flag == "--threads")
      a.threads = std::stoi(value);
    else if (flag == "--repeat")
      a.repeat = std::stoi(value);
    else if (flag == "--json")
      a.json = value;
    else
      throw user_error("bench_cpu_block: unknown option ", flag);
  }
  return a;
}

/// Milliseconds of forward and backward, the best of `repeat`.
double best(const Call& forward, const std::vector<Tensor>& inputs, int repeat) {
  double least = INFINITY;
  for (int i = 0; i < repeat + 2; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const Tensor y = forward();
    torch::autograd::grad({y}, inputs, {at::ones_like(y)}, std::nullopt, false, true);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (i >= 2) least = std::min(least, took.count());
  }
  return least;
}

struct Row {
  std::string name;
  double ours, theirs, times;  // ms, ms, how often a step has it
};

class Bench {
 public:
  explicit Bench(const Arguments& a) : a_(a) {
    const int64_t sequences = a.tokens / 6;
    offsets_ = at::arange(sequences + 1, at::kLong) * 6;
    offsets_.index_put_({at::tensor({sequences})}, at::tensor({a.tokens}));
    sample_ = at::arange(a.tokens, at::kLong).div(6, "floor").clamp_max(sequences - 1);
    position_ = at::arange(a.tokens, at::kLong) - sample_ * 6;
  }

  std::vector<Row> run() {
    norms();
    feed_forward();
    dropouts();
    attention();
    loss();
    return rows_;
  }

 private:
  static Tensor leaf(at::IntArrayRef sizes) { return at::randn(sizes).set_requires_grad(true); }
  void add(const std::string& name, double times, std::vector<Tensor> inputs, const Call& ours,
           const Call& theirs) {
    rows_.push_back({name, best(ours, inputs, a_.repeat), best(theirs, inputs, a_.repeat), times});
  }

  void norms() {
    const Tensor x = leaf({a_.tokens, 64}), w = leaf({64}), b = leaf({64});
    add(
        "layer_norm", 5, {x, w, b}, [=] { return ops::layer_norm(x, w, b, 1e-5); },
        [=] { return at::layer_norm(x, {64}, w, b); });
  }
  void feed_forward() {
    const Tensor x = leaf({a_.tokens, 256}), b = leaf({256});
    add(
        "gelu + bias", 2, {x, b}, [=] { return ops::gelu(x, b); }, [=] { return at::gelu(x + b); });
    const Tensor y = leaf({a_.tokens, 64}), w = leaf({256, 64});
    const Call linear = [=] { return at::linear(y, w); };
    add("linear 64 to 256 (both PyTorch)", 2, {y, w}, linear, linear);
  }
  void dropouts() {
    const Tensor x = leaf({a_.tokens, 256}), y = leaf({a_.tokens, 64}), r = leaf({a_.tokens, 64}),
                 b = leaf({64});
    add(
        "dropout", 2, {x}, [=, this] { return ops::dropout(x, .3, 1, 2, 3, sample_, position_); },
        [=] { return at::dropout(x, .3, true); });
    add(
        "bias + dropout + residual", 4, {y, b, r},
        [=, this] { return ops::dropout_add(y, b, r, .3, 1, 2, 3, sample_, position_); },
        [=] { return r + at::dropout(y + b, .3, true); });
  }
  void attention() {
    const Tensor qkv = leaf({a_.tokens, 3, 2, 32});
    const int64_t sequences = offsets_.size(0) - 1,
                  padded = (a_.tokens - 1) / 6 / sequences * 6 + 12;
    const Tensor place = sample_ * padded + position_;
    add(
        "attention", 2, {qkv},
        [=, this] {
          const auto p = qkv.unbind(1);
          return ops::jagged_attention(p[0], p[1], p[2], offsets_, offsets_, padded, padded, true,
                                       1 / std::sqrt(32.0));
        },
        [=, this] {
          const Tensor wide = at::zeros({sequences * padded, 3, 2, 32}).index_copy(0, place, qkv);
          const auto p =
              wide.view({sequences, padded, 3, 2, 32}).permute({2, 0, 3, 1, 4}).unbind(0);
          return at::scaled_dot_product_attention(p[0], p[1], p[2], std::nullopt, 0.0, true);
        });
  }
  void loss() {
    const Tensor h = leaf({a_.tokens, 64}), items = leaf({a_.items, 64});
    const Tensor target = at::randint(a_.items, {a_.tokens}, at::kLong);
    add(
        "full softmax", 1, {h, items},
        [=] { return ops::full_softmax(h, items, target, .1, true); },
        [=] {
          const auto unit = [](const Tensor& x) {
            return x / x.norm(2, {1}, true).clamp_min(1e-12);
          };
          const Tensor logits = at::matmul(unit(h) / .1, unit(items).t());
          return at::cross_entropy_loss(logits, target, {}, at::Reduction::Sum);
        });
  }

  Arguments a_;
  Tensor offsets_, sample_, position_;
  std::vector<Row> rows_;
};

void print(const std::vector<Row>& rows, const Arguments& a) {
  std::printf("%lld tokens, %lld items, %d threads, best of %d; ms forward + backward\n",
              static_cast<long long>(a.tokens), static_cast<long long>(a.items), a.threads,
              a.repeat);
  std::printf("%-34s %6s %9s %9s %7s\n", "operator", "times", "ours", "PyTorch", "ratio");
  Row total{"step", 0, 0, 1};
  for (const Row& r : rows) {
    std::printf("%-34s %6.0f %9.3f %9.3f %7.2f\n", r.name.c_str(), r.times, r.ours, r.theirs,
                r.theirs / r.ours);
    total.ours += r.times * r.ours;
    total.theirs += r.times * r.theirs;
  }
  std::printf("%-34s %6s %9.3f %9.3f %7.2f\n", "sum, times counted", "", total.ours, total.theirs,
              total.theirs / total.ours);
}

int run(int argc, char** argv) {
  const Arguments a = parse(argc, argv);
  // Large blocks stay in the heap for both sides; else each is mapped and page-faulted anew.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  at::set_num_threads(a.threads);
  const std::vector<Row> rows = Bench(a).run();
  print(rows, a);
  if (a.json.empty()) return kExitDone;
  nlohmann::json out = nlohmann::json::array();
  for (const Row& r : rows)
    out.push_back({{"operator", r.name},
                   {"ms", r.ours},
                   {"peers", {{"pytorch_ms", r.theirs}}},
                   {"times", r.times},
                   {"threads", a.threads}});
  std::ofstream(a.json) << out.dump(1) << "\n";
  return kExitDone;
}

}  // namespace
}  // namespace tautline

int main(int argc, char** argv) {
  try {
    return tautline::run(argc, argv);
  } catch (const tautline::UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tautline::kExitUser;
  }
}
