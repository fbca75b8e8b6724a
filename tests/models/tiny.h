// A tiny model with its tables on one rank, and a batch for it.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "tautline/comm/communicator.h"
#include "tautline/embedding/sharded_table.h"
#include "tautline/models/inputs.h"
#include "tautline/models/losses.h"
#include "tautline/models/sequence_model.h"

namespace tautline::models {

struct Tiny {
  ModelConfig config;
  int64_t classes;
  SequenceModel model;
  std::map<std::string, std::unique_ptr<embedding::ShardedTable>> tables;
  InputBuilder inputs;

  Tiny(const ModelConfig& config, int64_t classes, uint64_t seed = 1)
      : config(config),
        classes(classes),
        model(config, {}, seed, at::kCPU),
        inputs(config, classes, seed, at::kCPU) {
    for (const auto& [name, table] : config.tables) {
      tables[name] = std::make_unique<embedding::ShardedTable>(
          name, table, TablePlan{}, comm::Communicator(at::kCPU), embedding::ShardedTableOptions{});
    }
  }

  Rows look_up(const Inputs& in) {
    Rows rows;
    for (const auto& [name, ids] : in.ids) {
      embedding::Route route = tables[name]->start_ids(ids);
      rows[name] =
          tables[name]->return_rows(route, tables[name]->look_up(route)).detach().requires_grad_();
    }
    return rows;
  }

  Loss loss(const Inputs& in, const Rows& rows, const ForwardMode& mode) {
    const HeadConfig* head = next_item_head(config);
    return step_loss(
        {model, head ? tables[head->table].get() : nullptr, classes, comm::Communicator(at::kCPU)},
        in, rows, model.hidden(in, rows, mode));
  }
};

/// Samples of the given lengths; the last token of each has a target outside the sample.
inline data::Batch make_batch(const std::vector<int64_t>& lengths, int64_t classes) {
  data::Batch batch;
  int64_t next = 0;
  const auto draw = [&] { return 1 + (next++ * 7 + 3) % classes; };
  for (size_t s = 0; s < lengths.size(); ++s) {
    batch.sample.push_back(static_cast<int64_t>(s));
    batch.user.push_back(static_cast<int64_t>(s));
    for (int64_t t = 0; t < lengths[s]; ++t) {
      batch.item.push_back(draw());
      batch.time.push_back(1000 * next * next);
      batch.categorical["shop"].push_back(next % 4);
      batch.next_label["click"].push_back(static_cast<float>(next % 3 == 0));
    }
    batch.offsets.push_back(static_cast<int64_t>(batch.item.size()));
    for (int64_t t = batch.offsets[s]; t < batch.offsets[s + 1]; ++t) {
      batch.target.push_back(t + 1 < batch.offsets[s + 1] ? batch.item[t + 1] : draw());
    }
  }
  batch.global_samples = batch.samples();
  batch.global_tokens = batch.global_targets = batch.tokens();
  batch.rank_tokens = {batch.tokens()};
  return batch;
}

/// The shape of configs/models/sasrec.yaml, small.
inline ModelConfig sasrec(int64_t classes, int64_t width = 8, double dropout = 0) {
  ModelConfig m;
  m.name = "sasrec";
  m.features = {{"item", FeatureConfig::Kind::kSequence, "item", "", {}, 20}};
  m.tables["item"].rows = classes + 1;
  m.tables["item"].dim = width;
  m.tables["item"].init_std = 0.3;
  m.backbone.layers = 2;
  m.backbone.width = width;
  m.backbone.heads = 2;
  m.backbone.norm = BackboneConfig::Norm::kLayer;
  m.backbone.mlp = BackboneConfig::Mlp::kGelu;
  m.backbone.bias = true;
  m.backbone.position = {BackboneConfig::Position::kLearned};
  m.backbone.dropout = dropout;
  HeadConfig& head = m.heads["next_item"];
  head.loss = HeadConfig::Loss::kFullSoftmax;
  head.table = "item";
  head.normalize = true;
  head.temperature = 0.1;
  return m;
}

/// Everything else that a model can have.
inline ModelConfig rich(int64_t classes) {
  ModelConfig m;
  m.name = "rich";
  m.features = {
      {"item", FeatureConfig::Kind::kSequence, "item", "", {}, 20},
      {"shop", FeatureConfig::Kind::kSequence, "shop", "", {}, 20},
      {"shops", FeatureConfig::Kind::kPooled, "shop", "shop", FeatureConfig::Pooling::kMean, 20}};
  m.tables["item"].rows = classes + 1;
  m.tables["item"].dim = 6;
  m.tables["shop"].rows = 5;
  m.tables["shop"].dim = 4;
  for (auto& [name, table] : m.tables) table.init_std = 0.3;
  m.backbone.layers = 2;
  m.backbone.width = 8;
  m.backbone.heads = 2;
  m.backbone.position = {BackboneConfig::Position::kRope, BackboneConfig::Position::kTimeGap};
  m.backbone.dropout = 0.2;
  HeadConfig& next = m.heads["next_item"];
  next.loss = HeadConfig::Loss::kSampledSoftmax;
  next.table = "item";
  next.negatives = 5;
  HeadConfig& click = m.heads["click"];
  click.loss = HeadConfig::Loss::kBinary;
  click.table = "item";
  click.weight = 0.5;
  return m;
}

}  // namespace tautline::models
