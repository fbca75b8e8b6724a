#include <cmath>
#include <filesystem>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tautline/workload/describe.h"
#include "tautline/workload/model_fields.h"
#include "tautline/workload/workload_fields.h"

#include "base/unbounded.h"

namespace tautline {
namespace {

using testing::HasSubstr;

const std::string kModels = TAUTLINE_SOURCE_DIR "/configs/models/";

// A model in the spelling that users write, and the base of what follows.
const char* kText = R"(name: m
features:
  - {name: item, kind: sequence, table: item, max_length: 2048}
  - {name: action, kind: sequence, table: action}
  - {name: country, kind: pooled, table: country, pooling: mean}
tables:
  item: {rows: 20_000_000, dim: 64, hash: {ways: 2}, optimizer: {rowwise_adagrad: {lr: 0.02}}}
  action: {rows: 32, dim: 16}
  country: {rows: 256, dim: 16}
backbone: {layers: 8, width: 1024, heads: 8, attention: softmax, norm: rms, mlp: swiglu, position: [rope, time_gap], dropout: 0.1}
heads:
  next_item: {loss: sampled_softmax, negatives: 1024, log_q: true, table: item, normalize: true, temperature: 0.05}
  click: {loss: binary}
)";

std::string error_of(const std::vector<std::string>& sets) {
  try {
    parse_config<ModelConfig>(kText, "m.yaml", sets);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModelConfig, ReadsTheSpellingOfTheExamples) {
  const auto model = parse_config<ModelConfig>(kText, "m.yaml");
  ASSERT_EQ(model.features.size(), 3u);
  EXPECT_EQ(model.features[2].kind, FeatureConfig::Kind::kPooled);
  EXPECT_EQ(model.tables.at("item").rows, 20'000'000);
  EXPECT_EQ(model.tables.at("item").hash_ways, 2);
  EXPECT_EQ(model.tables.at("item").optimizer.kind, TableOptimizer::Kind::kRowwiseAdagrad);
  EXPECT_EQ(model.backbone.position,
            (std::vector{BackboneConfig::Position::kRope, BackboneConfig::Position::kTimeGap}));
  EXPECT_EQ(model.heads.at("next_item").temperature, 0.05);
  EXPECT_EQ(model.heads.at("click").loss, HeadConfig::Loss::kBinary);
  EXPECT_EQ(parse_config<ModelConfig>(to_yaml(model), "again"), model);
  const auto candidate = parse_config<ModelConfig>(kText, "m.yaml", {"heads.click.table=item"});
  EXPECT_EQ(parse_config<ModelConfig>(to_yaml(candidate), "again"), candidate);
  EXPECT_EQ(sample_length(model), 2048);
}

TEST(ModelConfig, RefusesWhatCannotBeBuilt) {
  EXPECT_EQ(error_of({"backbone.heads=3"}),
            "--set backbone.heads=3: backbone.heads 3 must divide backbone.width 1024");
  EXPECT_EQ(error_of({"backbone.width=1020"}),
            "m.yaml:10:36: backbone.heads 8 must divide backbone.width 1020");
  EXPECT_THAT(error_of({"backbone.width=24"}), HasSubstr("head dimension 3"));
  EXPECT_EQ(error_of({"features.0.table=itm"}),
            "--set features.0.table=itm: the feature 'item' names the table 'itm', which is not "
            "under 'tables'; did you mean 'item'?");
  EXPECT_THAT(error_of({"heads.next_item.table=users"}),
              HasSubstr("the head 'next_item' names the table 'users'"));
  EXPECT_THAT(error_of({"tables.item.hash.ways=3"}), HasSubstr("must divide its dim 64"));
  EXPECT_THAT(error_of({"tables.item.rows=0"}), HasSubstr("the hashed table 'item' needs"));
  EXPECT_THAT(error_of({"backbone.attention=block", "backbone.causal=false"}),
              HasSubstr("next_item would see the item"));
  EXPECT_THAT(error_of({"backbone.attention=block", "backbone.attention_bias=[position]"}),
              HasSubstr("block attention has no attention_bias"));
  EXPECT_THAT(error_of({"backbone.attention=silk"}), HasSubstr("silu"));
  EXPECT_EQ(error_of({"backbone.attention_bias=[time, position, time]"}),
            "--set backbone.attention_bias=[time, position, time]: backbone.attention_bias names "
            "time twice; leave one of them out");
  EXPECT_THAT(error_of({"backbone.causal=false"}),
              HasSubstr("--set backbone.causal=false: next_item would see the item"));
  EXPECT_THAT(error_of({"heads.next_item.loss=full_softmax", "heads.next_item.negatives=1"}),
              HasSubstr("unknown key 'negatives'"));
  EXPECT_THAT(error_of({"heads.click.loss=sampled_softmax"}), HasSubstr("needs loss: binary"));
  EXPECT_THAT(error_of({"heads={next_item: {loss: binary}}"}), HasSubstr("needs sampled_softmax"));
  EXPECT_THAT(error_of({"heads={next_item: {loss: full_softmax, table: item}}"}),
              HasSubstr("needs a table with direct ids"));
  EXPECT_THAT(error_of({"heads={}"}), HasSubstr("a model needs a head"));
  EXPECT_THAT(error_of({"features=[]"}), HasSubstr("at least one feature"));
  EXPECT_THAT(error_of({"features.1.name=item"}), HasSubstr("two features are called 'item'"));
  EXPECT_THAT(error_of({"backbone.dropout=1"}), HasSubstr("must be in [0, 1)"));
  EXPECT_THAT(error_of({"backbone.layers=0"}), HasSubstr("must be 1 or more"));
  EXPECT_THAT(error_of({"tables.action.optimizer.adam.beta1=1"}), HasSubstr("in [0, 1)"));
  EXPECT_THAT(error_of({"tables.action.optimizer.sgd.beta1=0.5"}),
              HasSubstr("unknown key 'beta1' in 'tables.action.optimizer.sgd'"));
  EXPECT_THAT(error_of({"heads.next_item.temperature=0"}), HasSubstr("above 0"));
}

TEST(ModelConfig, EveryIntegerHasAnUpperBound) {
  auto model = parse_config<ModelConfig>(kText, "m.yaml", {"backbone.attention_bias=[time]"});
  for (const std::string& path : unbounded_integers(model)) {
    // Real numbers that are whole here, and rows, whose bound lies above 2^31.
    const bool real = path.ends_with("weight") || path.ends_with("weight_decay") ||
                      path.ends_with("temperature") || path.ends_with("rope_base");
    EXPECT_TRUE(real || path.ends_with(".rows")) << path;
  }
  EXPECT_THAT(error_of({"tables.action.rows=9223372036854775807"}),
              HasSubstr("tables.action.rows must be 1_099_511_627_776 at most"));
  EXPECT_EQ(error_of({"backbone.width=1_000_000_000"}),
            "--set backbone.width=1_000_000_000: backbone.width must be 1_048_576 at most, found "
            "1_000_000_000");
  EXPECT_THAT(error_of({"backbone.layers=1_000_000_000"}), HasSubstr("must be 10_000 at most"));
  EXPECT_THAT(error_of({"tables.action.init_std=-1"}), HasSubstr("must be 0 or more"));
  EXPECT_THAT(error_of({"tables.action.init_std=.inf"}), HasSubstr("must be 0 or more, 1e30"));
  EXPECT_THAT(error_of({"heads.click.weight=1e308"}), HasSubstr("must be 0 or more, 1e30"));
  EXPECT_THAT(error_of({"heads.next_item.temperature=.inf"}), HasSubstr("above 0, 1e30"));
  EXPECT_THAT(error_of({"backbone.rope_base=0"}), HasSubstr("rope_base must be above 0"));
}

TEST(ModelConfig, ANameThatStandsTwiceInAListIsRefusedWhereItStands) {
  try {
    parse_config<ModelConfig>(
        "features: [{name: item, table: item}]\n"
        "tables: {item: {}}\n"
        "backbone:\n"
        "  position: [rope, time_gap, rope]\n"
        "heads: {next_item: {table: item}}\n",
        "m.yaml");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "m.yaml:4:30: backbone.position names rope twice; leave one of them out");
  }
}

TEST(ModelConfig, EveryConfiguredModelReadsAndWrites) {
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(kModels)) {
    const auto model = read_config<ModelConfig>(file.path());
    EXPECT_EQ(model.name, file.path().stem()) << file.path();
    EXPECT_EQ(parse_config<ModelConfig>(to_yaml(model), "again"), model) << file.path();
    ++count;
  }
  EXPECT_GE(count, 5);
}

TEST(ModelConfig, SasrecIsThePublishedShape) {
  const auto model = read_config<ModelConfig>(kModels + "sasrec.yaml");
  // By hand: 2 layers of 4 linear layers with biases (64 -> 192, 64 -> 64, 64 -> 256 -> 64) and two
  // LayerNorms with biases, 200 learned positions, a last LayerNorm; input and output are 64 wide.
  const double layer = 192 * 65 + 64 * 65 + 256 * 65 + 64 * 257 + 4 * 64;
  EXPECT_EQ(dense_parameters(model), 2 * layer + 200 * 64 + 2 * 64);
  const TableConfig& item = model.tables.at("item");
  EXPECT_EQ(item.dim, 64);
  EXPECT_EQ(item.optimizer.kind, TableOptimizer::Kind::kAdam);
  EXPECT_EQ(item.optimizer.lr, 2e-3);
  EXPECT_EQ(item.optimizer.beta2, 0.98);
  const HeadConfig& head = model.heads.at("next_item");
  EXPECT_EQ(head.loss, HeadConfig::Loss::kFullSoftmax);
  EXPECT_TRUE(head.normalize);
  EXPECT_EQ(head.temperature, 0.1);
  EXPECT_EQ(model.backbone.dropout, 0.3);
  EXPECT_EQ(sample_length(model), 200);
}

TEST(ModelConfig, PeersAreTheHandWrittenShapes) {
  const struct {
    const char* name;
    double width, layers;
    int64_t heads;
  } peers[] = {{"s", 512, 4, 8}, {"m", 1024, 8, 8}, {"l", 2048, 12, 16}};
  for (const auto& peer : peers) {
    const auto model = read_config<ModelConfig>(kModels + "peer_" + peer.name + ".yaml");
    const double ff = std::floor(peer.width * 8 / 3 / 64) * 64;
    EXPECT_EQ(static_cast<double>(mlp_width(model.backbone)), ff);
    const double layer = 4 * peer.width * peer.width + 3 * ff * peer.width + 2 * peer.width;
    EXPECT_EQ(dense_parameters(model),
              layer * peer.layers + peer.width + 2 * 64 * peer.width);  // input and output linear
    EXPECT_EQ(model.backbone.heads, peer.heads);
    EXPECT_EQ(model.tables.at("item").rows, 20'000'000);
    EXPECT_EQ(model.tables.at("item").dim, 64);
    EXPECT_EQ(model.tables.at("item").optimizer.kind, TableOptimizer::Kind::kSgd);
    const HeadConfig& head = model.heads.at("next_item");
    EXPECT_EQ(head.negatives, 1024);
    EXPECT_FALSE(head.log_q);
    EXPECT_FALSE(head.normalize);
    EXPECT_EQ(head.temperature, 1);
    EXPECT_EQ(model.backbone.dropout, 0);
  }
}

LogStatistics log_of(int64_t items) {
  LogStatistics log;
  log.name = "toy";
  log.users = 100;
  log.vocabularies["item"].size = items;
  // Every user has 12 events: 2 are held out, so 9 positions train.
  log.length = {12, 12, 12, 12, 12, 12.0, std::log(12.0), 0.0};
  return log;
}

TEST(Describe, CountsTokensLookupsAndFlop) {
  auto model = read_config<ModelConfig>(kModels + "sasrec.yaml");
  const Workload work = describe(model, log_of(50), 8);
  EXPECT_NEAR(work.tokens_per_step, 8 * 9, 1e-9);
  EXPECT_EQ(work.tables.at("item").rows, 51);  // and the unknown id
  EXPECT_NEAR(work.tables.at("item").ids_per_step, 72, 1e-9);
  EXPECT_EQ(work.tables.at("item").state_bytes_per_row, 8 * 64);
  EXPECT_NEAR(work.flop_per_step,
              6 * work.dense_parameters * 72 + 3.5 * 4 * 64 * (8 * 9 * 9 / 2.0) * 2, 1e-3);
  EXPECT_EQ(parse_config<Workload>(to_yaml(work), "again"), work);
}

TEST(Describe, LongHistoriesAreCutIntoChunks) {
  auto model = read_config<ModelConfig>(kModels + "sasrec.yaml", {"features.0.max_length=4"});
  // 9 positions make chunks of 4, 4 and 1: 3 tokens a sample, (16 + 16 + 1) / 2 / 3 pairs.
  const Workload work = describe(model, log_of(50), 6);
  EXPECT_NEAR(work.tokens_per_step, 6 * 3, 1e-9);
  const double pairs = 33 / 2.0 / 3 * 6;
  EXPECT_NEAR(work.flop_per_step, useful_flop(work.dense_parameters, 18, pairs, 2, 32, 2), 1e-3);
}

TEST(Describe, SampledSoftmaxLooksUpNegativesToo) {
  auto model = read_config<ModelConfig>(kModels + "peer_s.yaml");
  const Workload work = describe(model, log_of(50), 8);
  EXPECT_NEAR(work.tables.at("item").ids_per_step, 72 + 1024 + 8, 1e-9);
  EXPECT_EQ(work.tables.at("item").rows, 20'000'000);
}

TEST(Describe, RefusesATableThatIsTooSmall) {
  auto model = read_config<ModelConfig>(kModels + "sasrec.yaml", {"tables.item.rows=50"});
  EXPECT_NO_THROW(with_rows(model, log_of(49)));
  try {
    with_rows(model, log_of(50));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("has 50 rows, but the log 'toy' has ids up to 50"));
  }
}

TEST(Describe, RefusesAColumnThatTheLogLacks) {
  auto model = read_config<ModelConfig>(kModels + "sasrec.yaml", {"features.0.column=itme"});
  try {
    with_rows(model, log_of(5));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("reads the column 'itme'"));
    EXPECT_THAT(error.what(), HasSubstr("did you mean 'item'?"));
  }
}

TEST(Describe, SaysThatNumbersAreBuiltButUnused) {
  const auto refused = [](const std::string& column) -> std::string {
    LogStatistics log = log_of(5);
    log.dense = {"price"};
    log.labels = {"click"};
    try {
      with_rows(read_config<ModelConfig>(kModels + "sasrec.yaml", {"features.0.column=" + column}),
                log);
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(
      refused("price"),
      "the feature 'item' of the model 'sasrec' reads the column 'price', which holds numbers "
      "in the log 'toy': no model reads dense columns yet, they are built but unused; remove "
      "the feature, or build the column with --categorical");
  EXPECT_THAT(refused("click"), HasSubstr("which is a label of the log 'toy'"));
}

TEST(Describe, FlopFormulaOfTheLargePeer) {
  // Forward of attention is two products of 2 H d FLOP a pair, backward 2.5 times that.
  EXPECT_EQ(useful_flop(0, 100, 10, 4, 128, 3), 10 * 3 * 4.0 * 4 * 128 * 3.5);
  EXPECT_EQ(useful_flop(7, 100, 0, 4, 128, 3), 4200);
  BackboneConfig b;
  EXPECT_EQ(attention_pairs(10.0, b), 50);
  b.causal = false;
  EXPECT_EQ(attention_pairs(10.0, b), 100);
  b.attention = BackboneConfig::Attention::kBlock;
  EXPECT_EQ(attention_pairs(10.0, b), 100);
  EXPECT_EQ(attention_pairs(130.0, b), 2 * 64 * 64 + 4);
}

TEST(LogStatistics, ReadsBack) {
  LogStatistics log = log_of(5);
  log.first_time = 1'493'846'415;
  log.baselines["rules"] = {.1, .05, .2, .06, .3, .07, "window 10, last 3, norm 0.25"};
  log.labels = {"click"};
  EXPECT_EQ(parse_config<LogStatistics>(to_yaml(log), "workload.yaml"), log);
}

}  // namespace
}  // namespace tautline
