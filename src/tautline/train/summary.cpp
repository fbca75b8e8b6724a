#include "tautline/train/summary.h"

#include <cmath>
#include <cstdio>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tautline/base/text_table.h"
#include "tautline/base/units.h"

namespace tautline::train {
namespace {

std::string fixed(double value, const char* format) {
  if (!std::isfinite(value)) return "-";
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

/// "best on validation, step 360", "last, step 450"
std::string tested_weights(const Job& job, const RunResult& result) {
  const bool best = job.run.evaluate.stop_after > 0 && result.best_step >= 0;
  return (best ? "best on validation, step " : "last, step ") +
         std::to_string(tested_step(job, result));
}

std::vector<std::string> shown_baselines(const Job& job) {
  std::vector<std::string> names;
  if (!job.run.evaluate.baselines) return names;
  for (const char* name : {"popularity", "rules"}) {
    if (job.log.baselines.contains(name)) names.emplace_back(name);
  }
  return names;
}

}  // namespace

double baseline_metric(const BaselineMetrics& m, const std::string& name) {
  if (name == "hr_at_10") return m.hr_at_10;
  if (name == "ndcg_at_10") return m.ndcg_at_10;
  if (name == "hr_at_10_unseen") return m.hr_at_10_unseen;
  if (name == "ndcg_at_10_unseen") return m.ndcg_at_10_unseen;
  if (name == "hr_at_10_later") return m.hr_at_10_later;
  if (name == "ndcg_at_10_later") return m.ndcg_at_10_later;
  return std::nan("");
}

bool is_shown(const Evaluation& evaluation, const std::string& name) {
  if (evaluation.metrics.empty()) return true;
  for (const std::string& metric : evaluation.metrics) {
    const std::string key = metric_key(metric);
    if (name == key || name.starts_with(key + "_") || name.ends_with("_" + key)) return true;
  }
  return false;
}

int64_t tested_step(const Job& job, const RunResult& result) {
  const bool best = job.run.evaluate.stop_after > 0 && result.best_step >= 0;
  return best ? result.best_step : result.cursor.step;
}

std::string validation_line(const Evaluation& evaluation, const data::Cursor& cursor, double loss,
                            const EvaluationResult& result) {
  std::ostringstream line;
  line << "step " << cursor.step << "  epoch " << cursor.epoch << "  loss " << loss;
  const char* before = "  validation ";
  for (const auto& [name, value] : result.values) {
    if (name.ends_with("_unseen") || name.ends_with("_later")) continue;
    if (!is_shown(evaluation, name)) continue;
    line << before << name << " " << std::to_string(value);
    before = "  ";
  }
  return line.str();
}

std::string metric_title(const std::string& name) {
  for (const auto& [metric, title] :
       {std::pair{"hr_at_10", "HR@10"}, std::pair{"ndcg_at_10", "NDCG@10"}}) {
    if (name == metric) return title;
    const std::string group = std::string(metric) + "_";
    if (name.starts_with(group)) return std::string(title) + ", " + name.substr(group.size());
  }
  for (const auto& [metric, title] :
       {std::pair{"_auc", "AUC"}, std::pair{"_normalized_entropy", "normalised entropy"}}) {
    if (name.ends_with(metric))
      return name.substr(0, name.size() - std::string(metric).size()) + " " + title;
  }
  return name;
}

std::string summary_table(const Job& job, const RunResult& result) {
  std::string out;
  const auto baselines = shown_baselines(job);
  if (result.test) {
    std::vector<std::string> head = {"test events", ">" + job.model.name};
    for (const std::string& name : baselines) head.push_back(">" + name);
    TextTable table(head);
    for (const auto& [name, value] : result.test->values) {
      if (!is_shown(job.run.evaluate, name)) continue;
      std::vector<std::string> row = {name, fixed(value, "%.4f")};
      for (const std::string& b : baselines) {
        row.push_back(fixed(baseline_metric(job.log.baselines.at(b), name), "%.4f"));
      }
      table.add(row);
    }
    out += table.str() + "\n";
  }
  TextTable table({"run", ">value"});
  table.add({"steps", std::to_string(result.cursor.step)});
  table.add({"epochs", std::to_string(result.cursor.epoch)});
  if (result.test) table.add({"tested weights", tested_weights(job, result)});
  table.add({"loss of the last step", fixed(result.loss, "%.6f")});
  table.add({"samples/s", fixed(result.rates.samples_per_s, "%.0f")});
  table.add({"tokens/s", fixed(result.rates.tokens_per_s, "%.0f")});
  table.add({"targets/s", fixed(result.rates.targets_per_s, "%.0f")});
  table.add({"step p50, p95", fixed(result.rates.step_ms_p50, "%.2f") + ", " +
                                  fixed(result.rates.step_ms_p95, "%.2f ms")});
  if (result.mfu > 0) {
    const double peak = job.cluster.device.peak_flops.bf16;
    table.add({"MFU (" + rounded_quantity(peak, Unit::kFlopPerSecond) + ")",
               fixed(100 * result.mfu, "%.1f %%")});
  }
  table.add({"load, busiest rank over mean", fixed(result.rates.imbalance, "%.3f")});
  table.add({"exposed communication", fixed(100 * result.exposed_communication, "%.1f %%")});
  table.add({"waited for the reader", fixed(100 * result.reader_waited, "%.1f %%")});
  for (const auto& [phase, share] : result.phases) {
    table.add({"time in " + phase, fixed(100 * share, "%.1f %%")});
  }
  return out + table.str() + "\nrun's folder: " + job.run_dir + "\n";
}

std::string summary_json(const Job& job, const RunResult& result) {
  nlohmann::ordered_json json;
  json["step"] = result.cursor.step;
  json["epoch"] = result.cursor.epoch;
  json["loss"] = result.loss;
  for (const char* group : {"", "_unseen", "_later"}) {
    for (const char* metric : {"hr_at_10", "ndcg_at_10"}) {
      json[std::string(metric) + group] = nullptr;
    }
  }
  if (result.test) {
    for (const auto& [name, value] : result.test->values) json[name] = value;
    json["users"] = result.test->users;
  }
  for (const char* name : {"popularity", "rules"}) {
    const auto found = job.log.baselines.find(name);
    const bool known = found != job.log.baselines.end() && job.run.evaluate.baselines;
    for (const char* group : {"", "_unseen", "_later"}) {
      for (const char* metric : {"hr_at_10", "ndcg_at_10"}) {
        const std::string of_model = std::string(metric) + group;
        auto& value = json[std::string(name) + "_" + of_model];
        value = nullptr;
        if (known) value = baseline_metric(found->second, of_model);
      }
    }
  }
  json["samples_per_s"] = result.rates.samples_per_s;
  json["tokens_per_s"] = result.rates.tokens_per_s;
  json["targets_per_s"] = result.rates.targets_per_s;
  json["step_ms_p50"] = result.rates.step_ms_p50;
  json["step_ms_p95"] = result.rates.step_ms_p95;
  if (result.mfu > 0) json["mfu"] = result.mfu;
  json["exposed_communication"] = result.exposed_communication;
  json["imbalance"] = result.rates.imbalance;
  json["reader_waited"] = result.reader_waited;
  json["ranks"] = job.plan.devices;
  json["interrupted"] = result.interrupted;
  json["stopped_early"] = result.stopped_early;
  json["best_step"] = result.best_step;
  json["tested_step"] = nullptr;
  if (result.test) json["tested_step"] = tested_step(job, result);
  json["run_dir"] = job.run_dir;
  return json.dump();
}

}  // namespace tautline::train
