#include "tautline/models/inputs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_set>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "tautline/base/error.h"
#include "tautline/base/random.h"
#include "tautline/ops/attention_order.h"

namespace tautline::models {
namespace {

/// A device tensor of a host vector: a plain copy on the CPU, through pinned memory and without
/// waiting on a GPU.
template <class T>
at::Tensor to_device(const std::vector<T>& values, at::Device device) {
  constexpr at::ScalarType type = std::is_same_v<T, float> ? at::kFloat : at::kLong;
  const auto length = static_cast<int64_t>(values.size());
  at::Tensor host = at::empty({length}, at::TensorOptions(type).pinned_memory(device.is_cuda()));
  if (length > 0) std::copy(values.begin(), values.end(), host.mutable_data_ptr<T>());
  return device.is_cpu() ? host : host.to(device, /*non_blocking=*/true);
}

const std::vector<int64_t>& column(const std::string& name, const std::vector<int64_t>& item,
                                   const std::map<std::string, std::vector<int64_t>>& categorical) {
  if (name == "item") return item;
  const auto found = categorical.find(name);
  TAUTLINE_INVARIANT(found != categorical.end(), "the batch has no column '" << name << "'");
  return found->second;
}

/// The parts of a batch that training and evaluation share.
struct Sequences {
  const std::vector<int64_t>& offsets;
  const std::vector<int64_t>& item;
  const std::vector<int64_t>& time;
  const std::map<std::string, std::vector<int64_t>>& categorical;
};

using HostIds = std::map<std::string, std::vector<int64_t>>;

/// The ids, checked here where they are still on the host, so that no lookup has to ask a device.
void move_ids(Inputs& inputs, const HostIds& ids, const ModelConfig& model, at::Device device) {
  for (const auto& [name, list] : ids) {
    const TableConfig& table = model.tables.at(name);
    if (table.hash_ways == 0 && !list.empty()) {
      const auto [least, most] = std::minmax_element(list.begin(), list.end());
      if (*least < 0 || *most >= table.rows)
        throw user_error("id ", *least < 0 ? *least : *most, " is beyond table '", name, "' of ",
                         table.rows, " rows; ids from 0 to ", table.rows - 1, " are right");
    }
    inputs.ids[name] = to_device(list, device);
  }
}

/// For the kernels of all layers; block attention has no use for it, and the kernel that takes
/// biases neither.
at::Tensor attention_order(const Inputs& inputs, const BackboneConfig& b) {
  if (inputs.offsets.is_cpu() || b.attention == BackboneConfig::Attention::kBlock ||
      !b.attention_bias.empty())
    return {};
  return ops::attention_order(inputs.offsets, inputs.offsets, inputs.tokens, inputs.tokens,
                              inputs.longest, inputs.longest, b.heads, b.heads, b.width / b.heads,
                              b.causal);
}

/// Positions, times and the features' ids.
HostIds begin_inputs(Inputs& inputs, const Sequences& s, const ModelConfig& model,
                     at::Device device) {
  inputs.samples = static_cast<int64_t>(s.offsets.size()) - 1;
  inputs.tokens = static_cast<int64_t>(s.item.size());
  const auto& positions = model.backbone.position;
  const bool gaps =
      std::count(positions.begin(), positions.end(), BackboneConfig::Position::kTimeGap) > 0;
  std::vector<int64_t> position(s.item.size()), gap(gaps ? s.item.size() : 0);
  for (int64_t i = 0; i < inputs.samples; ++i) {
    inputs.longest = std::max(inputs.longest, s.offsets[i + 1] - s.offsets[i]);
    for (int64_t t = s.offsets[i]; t < s.offsets[i + 1]; ++t) {
      position[t] = t - s.offsets[i];
      if (gaps && t > s.offsets[i]) {
        gap[t] = time_gap_bucket(s.time[t] - s.time[t - 1], model.backbone.time_gap_buckets);
      }
    }
  }
  inputs.offsets = to_device(s.offsets, device);
  inputs.order = attention_order(inputs, model.backbone);
  inputs.position = to_device(position, device);
  if (gaps) inputs.time_gap = to_device(gap, device);
  if (has_bias(model.backbone, BackboneConfig::AttentionBias::kTime)) {
    inputs.time = to_device(s.time, device);
  }

  HostIds ids;
  for (const FeatureConfig& feature : model.features) {
    std::vector<int64_t>& table = ids[feature.table];
    const std::vector<int64_t>& values = column(column_of(feature), s.item, s.categorical);
    inputs.feature_row[feature.name] = static_cast<int64_t>(table.size());
    table.insert(table.end(), values.begin(), values.end());
  }
  return ids;
}

/// First row of the items among the head table's rows, or -1 where no feature reads items there.
int64_t item_rows(const Inputs& inputs, const ModelConfig& model, const std::string& table) {
  for (const FeatureConfig& feature : model.features) {
    if (feature.table == table && column_of(feature) == "item") {
      return inputs.feature_row.at(feature.name);
    }
  }
  return -1;
}

/// The distinct items of each target's history: prefixes of the sample's items in order of their
/// first event.
void add_repeats(Inputs& inputs, const data::Batch& batch, at::Device device) {
  std::vector<int64_t> id, first, last;
  std::unordered_set<int64_t> seen;
  for (int64_t i = 0; i < batch.samples(); ++i) {
    seen.clear();
    const auto begin = static_cast<int64_t>(id.size());
    for (int64_t t = batch.offsets[i]; t < batch.offsets[i + 1]; ++t) {
      if (seen.insert(batch.item[t]).second) id.push_back(batch.item[t]);
      if (batch.target[t] == 0) continue;
      first.push_back(begin);
      last.push_back(static_cast<int64_t>(id.size()));
    }
  }
  inputs.repeat_id = to_device(id, device);
  inputs.repeat_first = to_device(first, device);
  inputs.repeat_last = to_device(last, device);
}

}  // namespace

const HeadConfig* next_item_head(const ModelConfig& model) {
  for (const auto& [name, head] : model.heads) {
    if (head.loss != HeadConfig::Loss::kBinary) return &head;
  }
  return nullptr;
}

std::string target_table(const ModelConfig& model) {
  for (const auto& [name, head] : model.heads) {
    if (head.loss != HeadConfig::Loss::kFullSoftmax && !head.table.empty()) return head.table;
  }
  return "";
}

const std::string& column_of(const FeatureConfig& feature) {
  return feature.column.empty() ? feature.name : feature.column;
}

std::string label_of(const std::string& name, const HeadConfig& head) {
  return head.label.empty() ? name : head.label;
}

int64_t time_gap_bucket(int64_t seconds, int64_t buckets) {
  const double octaves = std::log2(1.0 + static_cast<double>(std::max<int64_t>(0, seconds)));
  const auto bucket = static_cast<int64_t>(octaves * static_cast<double>(buckets) / 32.0);
  return std::min(bucket, buckets - 1);
}

std::vector<int64_t> draw_negatives(int64_t negatives, int64_t classes, uint64_t seed,
                                    int64_t step) {
  Random random(seed, RandomUse::kNegative, static_cast<uint64_t>(step));
  std::vector<int64_t> ids(static_cast<size_t>(negatives));
  for (int64_t& id : ids) {
    id = 1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(classes)));
  }
  return ids;
}

Inputs InputBuilder::training(const data::Batch& batch) const {
  Inputs inputs;
  HostIds ids = begin_inputs(inputs, {batch.offsets, batch.item, batch.time, batch.categorical},
                             model_, device_);
  inputs.global_targets = batch.global_targets;
  for (const int64_t tokens : batch.rank_tokens) {
    inputs.most_tokens = std::max(inputs.most_tokens, tokens);
  }
  std::vector<int64_t> sample(batch.item.size());
  for (int64_t i = 0; i < batch.samples(); ++i) {
    std::fill(sample.begin() + batch.offsets[i], sample.begin() + batch.offsets[i + 1],
              batch.sample[i]);
  }
  inputs.sample = to_device(sample, device_);

  const std::string table = target_table(model_);
  const int64_t items = table.empty() ? -1 : item_rows(inputs, model_, table);
  std::vector<int64_t>* const rows = table.empty() ? nullptr : &ids[table];
  std::vector<int64_t> token, target, row;
  for (std::vector<int64_t>* list : {&token, &target, &row}) list->reserve(batch.item.size());
  for (int64_t i = 0; i < batch.samples(); ++i) {
    for (int64_t t = batch.offsets[i]; t < batch.offsets[i + 1]; ++t) {
      if (batch.target[t] == 0) continue;
      token.push_back(t);
      target.push_back(batch.target[t]);
      if (rows == nullptr) continue;
      const bool next =
          items >= 0 && t + 1 < batch.offsets[i + 1] && batch.item[t + 1] == batch.target[t];
      row.push_back(next ? items + t + 1 : static_cast<int64_t>(rows->size()));
      if (!next) rows->push_back(batch.target[t]);
    }
  }
  inputs.targets = static_cast<int64_t>(token.size());
  if (inputs.targets != inputs.tokens) inputs.target_token = to_device(token, device_);
  inputs.target_id = to_device(target, device_);
  if (!table.empty()) inputs.target_row = to_device(row, device_);

  const HeadConfig* head = next_item_head(model_);
  if (head && head->loss == HeadConfig::Loss::kSampledSoftmax) {
    const auto negatives = draw_negatives(head->negatives, classes_, seed_, batch.step);
    std::vector<int64_t>& rows = ids[head->table];
    inputs.negative_row = static_cast<int64_t>(rows.size());
    rows.insert(rows.end(), negatives.begin(), negatives.end());
    inputs.negative_id = to_device(negatives, device_);
  }
  if (head && head->repeat_bias) add_repeats(inputs, batch, device_);
  for (const auto& [name, head] : model_.heads) {
    if (head.loss != HeadConfig::Loss::kBinary) continue;
    const std::vector<float>& labels = batch.next_label.at(label_of(name, head));
    std::vector<float> chosen;
    for (const int64_t t : token) chosen.push_back(labels[t]);
    inputs.label[name] = to_device(chosen, device_);
  }
  move_ids(inputs, ids, model_, device_);
  return inputs;
}

Inputs InputBuilder::evaluation(const data::EvaluationBatch& batch) const {
  Inputs inputs;
  HostIds ids = begin_inputs(inputs, {batch.offsets, batch.item, batch.time, batch.categorical},
                             model_, device_);
  inputs.targets = batch.samples();
  std::vector<int64_t> token;
  for (int64_t i = 0; i < batch.samples(); ++i) token.push_back(batch.offsets[i + 1] - 1);
  inputs.target_token = to_device(token, device_);
  inputs.target_id = to_device(batch.target, device_);
  std::vector<int64_t> row;
  for (const auto& [name, head] : model_.heads) {
    if (head.loss != HeadConfig::Loss::kBinary) continue;
    inputs.label[name] = to_device(batch.label.at(label_of(name, head)), device_);
    if (head.table.empty() || !row.empty()) continue;
    std::vector<int64_t>& rows = ids[head.table];
    for (const int64_t target : batch.target) {
      row.push_back(static_cast<int64_t>(rows.size()));
      rows.push_back(target);
    }
  }
  inputs.target_row = to_device(row, device_);
  move_ids(inputs, ids, model_, device_);
  return inputs;
}

}  // namespace tautline::models
