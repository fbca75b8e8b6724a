#include "tautline/train/run_report.h"

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "tautline/base/units.h"
#include "tautline/diagnose/report.h"
#include "tautline/diagnose/svg.h"
#include "tautline/plan/plan_fields.h"
#include "tautline/train/metric_log.h"
#include "tautline/train/run_fields.h"
#include "tautline/train/summary.h"

namespace tautline::train {
namespace {

std::string fixed(double value, const char* format) {
  if (!std::isfinite(value)) return "-";
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string count(double value) { return diagnose::grouped(std::llround(value)); }
std::string count(int64_t value) { return diagnose::grouped(value); }

/// "1 rank", "1,200 ranks"
std::string counted(int64_t value, const std::string& noun) {
  return count(value) + " " + noun + (value == 1 ? "" : "s");
}

/// One chart a metric: loss in training, then each validation metric with the baselines' levels.
std::vector<diagnose::Chart> charts(const Job& job) {
  std::map<std::string, diagnose::Curve> curves;
  std::vector<std::string> order;
  for (const MetricRecord& record : read_metric_log(job.run_dir)) {
    if (record.kind != "train" && record.kind != "validation") continue;
    for (const auto& [name, value] : record.values) {
      if (name.ends_with("_unseen") || name.ends_with("_later")) continue;
      if (name != "loss" && !is_shown(job.run.evaluate, name)) continue;
      if (!curves.contains(name)) order.push_back(name);
      diagnose::Curve& curve = curves[name];
      curve.name = record.kind;
      curve.noisy = record.kind == "train";
      curve.x.push_back(static_cast<double>(record.step));
      curve.y.push_back(value);
    }
  }
  std::vector<diagnose::Chart> out;
  for (const std::string& name : order) {
    diagnose::Chart chart;
    chart.title = name == "loss" ? "Training loss" : metric_title(name) + " on validation";
    chart.y_label = name == "loss" ? "nats" : "";
    chart.curves = {curves[name]};
    if (curves.contains("loss")) chart.x_from = curves["loss"].x.front() - 1;  // one left edge
    for (const auto& [baseline, metrics] : job.log.baselines) {
      if (!job.run.evaluate.baselines) break;
      if (name == "hr_at_10") chart.levels.push_back({baseline + " (test)", metrics.hr_at_10});
      if (name == "ndcg_at_10") chart.levels.push_back({baseline + " (test)", metrics.ndcg_at_10});
    }
    out.push_back(std::move(chart));
  }
  return out;
}

std::vector<diagnose::Headline> headlines(const Job& job, const RunResult& result) {
  std::vector<diagnose::Headline> out;
  const Rates& rates = result.rates;
  if (result.test) {
    const double ndcg = result.test->get("ndcg_at_10");
    std::string note;
    const auto popularity = job.log.baselines.find("popularity");
    if (popularity != job.log.baselines.end() && popularity->second.ndcg_at_10 > 0) {
      note = fixed(ndcg / popularity->second.ndcg_at_10, "%.1f \xC3\x97 popularity");
    }
    if (std::isfinite(ndcg)) out.push_back({"NDCG@10, test", fixed(ndcg, "%.4f"), note});
  }
  out.push_back({"Training loss", fixed(result.loss, "%.4f"), "step " + count(result.cursor.step)});
  out.push_back({"Tokens/s", count(rates.tokens_per_s), count(rates.targets_per_s) + " targets/s"});
  out.push_back({"Step time, median", fixed(rates.step_ms_p50, "%.1f ms"),
                 fixed(rates.step_ms_p95, "95 %% within %.1f ms")});
  if (result.mfu > 0) {
    const double peak = job.cluster.device.peak_flops.bf16;
    out.push_back({"MFU", fixed(100 * result.mfu, "%.1f %%"),
                   "of " + rounded_quantity(peak, Unit::kFlopPerSecond)});
  }
  if (job.plan.devices > 1) {
    out.push_back({"Exposed communication", fixed(100 * result.exposed_communication, "%.1f %%"),
                   "of the steps"});
  }
  return out;
}

/// " since step 20", where the run went on there; nothing of a run in one piece.
std::string since(const RunResult& result) {
  const int64_t first = result.cursor.step - result.steps;
  return first > 0 ? " since step " + count(first) : "";
}

std::vector<std::string> facts(const Job& job, const RunResult& result) {
  const Device& device = job.cluster.device;
  const std::string place = device.kind == Device::Kind::kCpu ? "CPU" : device.name;
  std::vector<std::string> out = {
      "model " + job.model.name, "log " + job.log.name,
      counted(job.plan.devices, "rank") + (place.empty() ? "" : " on " + place),
      counted(result.cursor.step, "step") + ", " + counted(result.cursor.epoch, "epoch")};
  if (result.test && tested_step(job, result) != result.cursor.step) {
    out.push_back("tested with the weights of step " + count(tested_step(job, result)));
  }
  if (!since(result).empty()) out.push_back("rates, times and loads" + since(result));
  return out;
}

diagnose::ReportTable results(const Job& job, const RunResult& result) {
  diagnose::ReportTable table;
  if (!result.test) return table;
  const bool ranked = std::isfinite(result.test->get("ndcg_at_10"));
  table.headers = {""};
  std::vector<std::pair<std::string, double>> shown;
  for (const auto& [name, value] : result.test->values)
    if (is_shown(job.run.evaluate, name)) shown.emplace_back(name, value);
  for (const auto& [name, value] : shown) table.headers.push_back(">" + metric_title(name));
  table.emphasised_row = 0;
  table.rows.push_back({job.model.name});
  for (const auto& [name, value] : shown) {
    table.rows[0].push_back(fixed(value, "%.4f"));
  }
  for (const auto& [name, metrics] : job.log.baselines) {
    if (!job.run.evaluate.baselines || !ranked) break;  // they rank, and know no labels
    table.rows.push_back({name});
    for (const auto& [metric, value] : shown) {
      table.rows.back().push_back(fixed(baseline_metric(metrics, metric), "%.4f"));
    }
  }
  table.note =
      "Test events of " + counted(result.test->users, "user") +
      (ranked ? ", each ranked among all " + count(job.classes) +
                    " items. Unseen: without the items of the user's history. Later: users "
                    "whose event is strictly later than the last one before it."
              : ".");
  return table;
}

std::map<std::string, diagnose::TableSize> sizes(const Job& job) {
  std::map<std::string, diagnose::TableSize> out;
  for (const auto& [name, table] : job.model.tables) {
    const TableWork& work = job.workload.tables.at(name);
    const auto rows = static_cast<double>(table.rows);
    out[name] = {table.rows, table.dim, 4.0 * rows * static_cast<double>(table.dim),
                 rows * work.state_bytes_per_row};
  }
  return out;
}

}  // namespace

void write_run_report(const ReportInput& input) {
  const Job& job = input.job;
  const RunResult& result = input.result;
  diagnose::Report report;
  report.title = std::filesystem::path(job.run_dir).filename().string();
  report.status = result.interrupted     ? "stopped by a signal"
                  : result.stopped_early ? "stopped early"
                                         : "finished";
  report.good = !result.interrupted;
  report.facts = facts(job, result);
  report.headlines = headlines(job, result);
  report.curves = charts(job);
  report.phases = diagnose::phase_bars(input.phase_seconds,
                                       static_cast<double>(std::max<int64_t>(1, input.steps)));
  report.phases_note = "Mean over " + counted(input.steps, "step") + since(result) +
                       ". Waiting for slower ranks is inside the phases.";
  report.load.title = "tokens a step by rank";
  report.load.unit = "tokens";
  report.load.parts = {"tokens"};
  report.load.mean_line = true;
  report.load.whole = true;
  for (size_t r = 0; r < input.tokens.size(); ++r) {
    report.load.bars.push_back("rank " + std::to_string(r));
    report.load.values.push_back({input.tokens[r]});
  }
  report.load_note = "The busiest rank of a step has " + fixed(result.rates.imbalance, "%.3f") +
                     " times the mean, over all steps" + since(result) + ".";
  report.plan = job.plan;
  report.tables = sizes(job);
  report.results = results(job, result);
  report.command = input.command;
  report.config = to_yaml(job.run);
  report.provenance = {{"plan", digest(job.plan)}, {"model", job.model_digest}};
  diagnose::write_report(report, job.run_dir + "/report.html");
}

}  // namespace tautline::train
