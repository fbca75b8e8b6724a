#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/tiny.h"

namespace tautline::models {
namespace {

double eps() { return 0x1p-24; }

/// SASRec in plain operators of libtorch, sample by sample, from the same parameters.
at::Tensor plain_sasrec_loss(Tiny& tiny, const data::Batch& batch, const at::Tensor& table) {
  const dense::Parameters& p = tiny.model.parameters();
  const BackboneConfig& b = tiny.config.backbone;
  const int64_t c = b.width, d = c / b.heads;
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (int64_t s = 0; s < batch.samples(); ++s) {
    const int64_t begin = batch.offsets[s], n = batch.offsets[s + 1] - begin;
    if (n == 0) continue;
    const auto ids = at::tensor(
        std::vector<int64_t>(batch.item.begin() + begin, batch.item.begin() + begin + n));
    const auto targets = at::tensor(
        std::vector<int64_t>(batch.target.begin() + begin, batch.target.begin() + begin + n));
    const auto w = [&](const std::string& name) { return p[name].to(at::kDouble); };
    at::Tensor x = table.index_select(0, ids) + w("position.weight").narrow(0, 0, n);
    for (int64_t l = 0; l < b.layers; ++l) {
      const std::string name = "layer." + std::to_string(l);
      const auto norm = [&](const at::Tensor& v, const std::string& which) {
        return at::layer_norm(v, {c}, w(name + which + ".weight"), w(name + which + ".bias"), 1e-5);
      };
      const auto linear = [&](const at::Tensor& v, const std::string& which) {
        return at::linear(v, w(name + which + ".weight"), w(name + which + ".bias"));
      };
      const at::Tensor qkv =
          linear(norm(x, ".attention.norm"), ".attention.qkv").view({n, 3, b.heads, d});
      const auto head = [&](int64_t i) { return qkv.select(1, i).transpose(0, 1); };
      at::Tensor scores = at::matmul(head(0), head(1).transpose(1, 2)) / std::sqrt(double(d));
      scores = scores.masked_fill(at::ones({n, n}, at::kBool).triu(1), -INFINITY);
      const at::Tensor attended =
          at::matmul(scores.softmax(-1), head(2)).transpose(0, 1).reshape({n, c});
      x = x + linear(attended, ".attention.out");
      x = x + linear(at::gelu(linear(norm(x, ".mlp.norm"), ".mlp.in")), ".mlp.out");
    }
    const at::Tensor h = at::layer_norm(x, {c}, w("norm.weight"), w("norm.bias"), 1e-5);
    const auto unit = [](const at::Tensor& v) { return v / v.norm(2, {-1}, true); };
    const at::Tensor logits = at::matmul(unit(h), unit(table.narrow(0, 1, tiny.classes)).t()) /
                              tiny.config.heads.at("next_item").temperature;
    loss = loss - logits.log_softmax(-1).gather(1, targets.sub(1).unsqueeze(1)).sum();
  }
  return loss / static_cast<double>(batch.global_targets);
}

TEST(SequenceModel, IsSasrecFromEqualWeights) {
  Tiny tiny(sasrec(37), 37);
  const data::Batch batch = make_batch({1, 5, 0, 17, 16, 2}, 37);
  const Inputs inputs = tiny.inputs.training(batch);
  const Rows rows = tiny.look_up(inputs);
  const Loss loss = tiny.loss(inputs, rows, {true, 0});
  tiny.model.parameters().clear_gradients();
  torch::autograd::backward(loss.roots, loss.gradients);
  const at::Tensor ours = tiny.model.parameters().gradients().clone();
  at::Tensor table_gradient = loss.class_gradient.clone();
  table_gradient.index_add_(0, inputs.ids.at("item"), rows.at("item").grad());

  at::Tensor table = tiny.tables["item"]->weight().to(at::kDouble).detach().requires_grad_();
  const at::Tensor expected = plain_sasrec_loss(tiny, batch, table);
  tiny.model.parameters().clear_gradients();
  expected.backward();
  // The longest chain of roundings: layers x about 40 operators, each sum at most 64 long, and
  // logits of up to 1 / temperature.
  const double relative = 2 * 40 * 8 * eps() * 10;
  EXPECT_NEAR(loss.value.item<double>(), expected.item<double>(),
              relative * std::abs(expected.item<double>()));
  for (const dense::Parameter& p : tiny.model.parameters().all()) {
    const at::Tensor mine = ours.narrow(0, p.begin, p.end - p.begin).view(p.value.sizes());
    const double scale = p.gradient.abs().max().item<double>();
    EXPECT_LE((mine - p.gradient).abs().max().item<double>(), relative * scale + 1e-9) << p.name;
  }
  const double scale = table.grad().abs().max().item<double>();
  EXPECT_LE((table_gradient - table.grad()).abs().max().item<double>(), relative * scale);
}

/// Central differences of the loss along a direction of everything that is trained.
void check_gradient(const ModelConfig& config, int64_t classes) {
  Tiny tiny(config, classes);
  const data::Batch batch = make_batch({3, 9, 0, 1, 17}, classes);
  const Inputs inputs = tiny.inputs.training(batch);
  const Rows rows = tiny.look_up(inputs);
  const Loss loss = tiny.loss(inputs, rows, {true, 5});
  tiny.model.parameters().clear_gradients();
  torch::autograd::backward(loss.roots, loss.gradients);

  const c10::AutoGradMode no_grad(false);
  std::vector<std::pair<at::Tensor, at::Tensor>> trained = {
      {tiny.model.parameters().values(), tiny.model.parameters().gradients().clone()}};
  for (auto& [name, table] : tiny.tables) {
    at::Tensor gradient = at::zeros_like(table->weight());
    gradient.index_add_(0, inputs.ids.at(name), rows.at(name).grad());
    if (loss.class_gradient.defined()) gradient.add_(loss.class_gradient);
    trained.emplace_back(table->weight(), gradient);
  }
  for (int trial = 0; trial < 4; ++trial) {
    double expected = 0;
    std::vector<at::Tensor> directions;
    for (const auto& [value, gradient] : trained) {
      directions.push_back(at::sin(at::arange(value.numel()) * (1.3 + trial) + 1).view_as(value));
      expected += (gradient * directions.back()).sum().item<double>();
    }
    const auto at_distance = [&](double distance) {
      for (size_t i = 0; i < trained.size(); ++i) trained[i].first.add_(directions[i], distance);
      const Inputs again = tiny.inputs.training(batch);
      const double value = tiny.loss(again, tiny.look_up(again), {true, 5}).value.item<double>();
      for (size_t i = 0; i < trained.size(); ++i) trained[i].first.add_(directions[i], -distance);
      return value;
    };
    const auto slope = [&](double h) { return (at_distance(h) - at_distance(-h)) / (2 * h); };
    const double h = 2e-3, coarse = slope(2 * h), fine = slope(h);
    // Truncation falls with h^2, so a third of the difference is what `fine` still has; each loss
    // is a sum that rounds a few hundred times.
    const double tolerance = std::abs(coarse - fine) + 32 * eps() * loss.value.item<double>() / h;
    EXPECT_NEAR(fine, expected, tolerance) << "trial " << trial;
    EXPECT_GT(std::abs(expected), 4 * tolerance) << "the test sees nothing, trial " << trial;
  }
}

TEST(SequenceModel, GradientOfSasrec) { check_gradient(sasrec(23, 8, 0.3), 23); }
TEST(SequenceModel, GradientOfEverythingElse) { check_gradient(rich(23), 23); }

ModelConfig attending(BackboneConfig::Attention attention) {
  using Bias = BackboneConfig::AttentionBias;
  ModelConfig m = rich(23);
  m.backbone.attention = attention;
  if (attention != BackboneConfig::Attention::kBlock)
    m.backbone.attention_bias = {Bias::kPosition, Bias::kTime};
  return m;
}
TEST(SequenceModel, GradientOfEveryAttention) {
  using Attention = BackboneConfig::Attention;
  for (const auto attention :
       {Attention::kSoftmax, Attention::kSilu, Attention::kGelu, Attention::kBlock})
    check_gradient(attending(attention), 23);
}

TEST(SequenceModel, BlocksOfSixtyFourTokensSeeNothingOfEachOther) {
  ModelConfig config = attending(BackboneConfig::Attention::kBlock);
  config.features.pop_back();  // the pooled one sees the whole past
  for (auto& feature : config.features) feature.max_length = 200;
  Tiny tiny(config, 23);
  const data::Batch batch = make_batch({130}, 23);
  const Inputs inputs = tiny.inputs.training(batch);
  const at::Tensor before = tiny.model.hidden(inputs, tiny.look_up(inputs), {false, 0});
  data::Batch changed = batch;
  changed.item[3] = changed.item[3] % 23 + 1;
  const Inputs other = tiny.inputs.training(changed);
  const at::Tensor after = tiny.model.hidden(other, tiny.look_up(other), {false, 0});
  EXPECT_TRUE(before.narrow(0, 0, 3).equal(after.narrow(0, 0, 3)));
  EXPECT_FALSE(before.narrow(0, 60, 4).equal(after.narrow(0, 60, 4)));
  EXPECT_TRUE(before.narrow(0, 64, 66).equal(after.narrow(0, 64, 66)));
}

TEST(SequenceModel, ASampleDoesNotSeeItsNeighboursNorItsFuture) {
  Tiny tiny(rich(23), 23);
  const data::Batch batch = make_batch({6, 9}, 23);
  const Inputs inputs = tiny.inputs.training(batch);
  const at::Tensor before = tiny.model.hidden(inputs, tiny.look_up(inputs), {false, 0});
  data::Batch changed = batch;
  changed.item[4] = changed.item[4] % 23 + 1;  // of sample 0
  changed.categorical["shop"][4] = (changed.categorical["shop"][4] + 1) % 4;
  const Inputs other = tiny.inputs.training(changed);
  const at::Tensor after = tiny.model.hidden(other, tiny.look_up(other), {false, 0});
  EXPECT_TRUE(before.narrow(0, 0, 4).equal(after.narrow(0, 0, 4)));
  EXPECT_FALSE(before.narrow(0, 4, 2).equal(after.narrow(0, 4, 2)));
  EXPECT_TRUE(before.narrow(0, 6, 9).equal(after.narrow(0, 6, 9)));
}

TEST(SequenceModel, ARankWithoutSamplesTakesPart) {
  for (const ModelConfig& config :
       {sasrec(23), rich(23), attending(BackboneConfig::Attention::kSilu),
        attending(BackboneConfig::Attention::kBlock)}) {
    Tiny tiny(config, 23);
    data::Batch batch = make_batch({}, 23);
    batch.categorical["shop"];
    batch.next_label["click"];
    batch.global_targets = 10;
    const Inputs inputs = tiny.inputs.training(batch);
    const Loss loss = tiny.loss(inputs, tiny.look_up(inputs), {true, 0});
    tiny.model.parameters().clear_gradients();
    torch::autograd::backward(loss.roots, loss.gradients);
    EXPECT_EQ(loss.value.item<float>(), 0);
    EXPECT_EQ(tiny.model.parameters().gradients().abs().sum().item<float>(), 0);
  }
}

}  // namespace
}  // namespace tautline::models
