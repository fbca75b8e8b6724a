#include "tautline/train/run_files.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tautline/base/error.h"
#include "tautline/diagnose/report.h"
#include "tautline/plan/plan_fields.h"
#include "tautline/timeline/file.h"
#include "tautline/timeline/perfetto.h"
#include "tautline/train/metric_log.h"
#include "tautline/train/run_fields.h"
#include "tautline/train/summary.h"

namespace tautline::train {
namespace {

void save_text(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) throw user_error(path, " cannot be written");
}

std::string fixed(double value, const char* format) {
  if (!std::isfinite(value)) return "-";
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

/// One chart a metric: loss in training, then each validation metric with the baselines' levels.
std::vector<diagnose::Chart> charts(const Job& job) {
  std::map<std::string, diagnose::Curve> curves;
  std::vector<std::string> order;
  for (const MetricRecord& record : read_metric_log(job.run_dir)) {
    if (record.kind != "train" && record.kind != "validation") continue;
    for (const auto& [name, value] : record.values) {
      if (name.ends_with("_unseen") || name.ends_with("_later")) continue;
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
    chart.title = name == "loss" ? "Training loss" : name + " on validation";
    chart.y_label = name == "loss" ? "nats" : "";
    chart.curves = {curves[name]};
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
  if (result.test) {
    const double ndcg = result.test->get("ndcg_at_10");
    std::string note;
    const auto popularity = job.log.baselines.find("popularity");
    if (popularity != job.log.baselines.end() && popularity->second.ndcg_at_10 > 0) {
      note = fixed(ndcg / popularity->second.ndcg_at_10, "%.1fx popularity");
    }
    if (std::isfinite(ndcg)) out.push_back({"NDCG@10, test", fixed(ndcg, "%.4f"), note});
  }
  out.push_back({"loss of the last step", fixed(result.loss, "%.4f"),
                 "step " + std::to_string(result.cursor.step)});
  out.push_back({"targets/s", fixed(result.rates.targets_per_s, "%.0f"),
                 fixed(result.rates.tokens_per_s, "%.0f tokens/s")});
  out.push_back({"step, median", fixed(result.rates.step_ms_p50, "%.1f ms"),
                 fixed(result.rates.step_ms_p95, "95 %% within %.1f ms")});
  return out;
}

diagnose::ReportTable results(const Job& job, const RunResult& result) {
  diagnose::ReportTable table;
  if (!result.test) return table;
  table.headers = {""};
  for (const auto& [name, value] : result.test->values) table.headers.push_back(">" + name);
  table.emphasised_row = 0;
  table.rows.push_back({job.model.name});
  for (const auto& [name, value] : result.test->values) {
    table.rows[0].push_back(fixed(value, "%.4f"));
  }
  for (const auto& [name, metrics] : job.log.baselines) {
    if (!job.run.evaluate.baselines) break;
    table.rows.push_back({name});
    for (const auto& [metric, value] : result.test->values) {
      table.rows.back().push_back(fixed(baseline_metric(metrics, metric), "%.4f"));
    }
  }
  table.note = "test events of " + std::to_string(result.test->users) +
               " users, each ranked among all " + std::to_string(job.classes) + " items";
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

void write_configs(const Job& job) {
  save_text(job.run_dir + "/plan.yaml", to_yaml(job.plan));
  save_text(job.run_dir + "/run.yaml", to_yaml(job.run));
  save_text(job.run_dir + "/model.yaml", to_yaml(job.model));
}

Timeline write_timelines(const Job& job, const Recorder& recorder, int rank, int ranks,
                         const Exchange& exchange) {
  namespace fs = std::filesystem;
  const auto part = [&](int r) {
    return job.run_dir + "/timeline-rank-" + std::to_string(r) + ".jsonl";
  };
  Timeline mine = recorder.timeline();
  mine.header.plan_digest = digest(job.plan);
  mine.header.world = ranks;
  write_timeline(mine, part(rank));
  char origin[40];
  std::snprintf(origin, sizeof origin, "%.9f", recorder.origin());
  const std::vector<std::string> origins = exchange(origin);
  if (rank != 0) return mine;
  std::vector<TimelinePart> parts;
  for (int r = 0; r < ranks; ++r) {
    parts.push_back({read_timeline(part(r)), std::stod(origins[r]) - recorder.origin()});
  }
  const Timeline joined = merge(std::move(parts));
  write_timeline(joined, job.run_dir + "/timeline.jsonl");
  write_perfetto(joined, job.run_dir + "/timeline.json");
  std::error_code ignored;
  for (int r = 0; r < ranks; ++r) fs::remove(part(r), ignored);
  return joined;
}

std::vector<std::map<std::string, double>> gather_phases(const Recorder& recorder,
                                                         const Exchange& exchange) {
  std::ostringstream mine;
  mine.precision(17);
  for (const auto& [key, seconds] : recorder.totals()) {
    if (key.first == "compute" && key.second != "wait")
      mine << key.second << ' ' << seconds << '\n';
  }
  std::vector<std::map<std::string, double>> out;
  for (const std::string& text : exchange(mine.str())) {
    std::istringstream in(text);
    std::string kind;
    double seconds = 0;
    out.emplace_back();
    while (in >> kind >> seconds) out.back()[kind] = seconds;
  }
  return out;
}

void write_run_report(const ReportInput& input) {
  const Job& job = input.job;
  const RunResult& result = input.result;
  diagnose::Report report;
  report.title = std::filesystem::path(job.run_dir).filename().string();
  report.status = result.interrupted ? "stopped by a signal" : "finished";
  report.good = !result.interrupted;
  report.facts = {"model " + job.model.name, std::to_string(job.plan.devices) + " ranks",
                  "log " + job.log.name, std::to_string(result.cursor.step) + " steps"};
  report.headlines = headlines(job, result);
  report.curves = charts(job);
  report.phases = diagnose::phase_bars(input.phase_seconds,
                                       static_cast<double>(std::max<int64_t>(1, input.steps)));
  report.load.title = "tokens a step by rank";
  report.load.unit = "tokens";
  report.load.parts = {"tokens"};
  report.load.mean_line = true;
  for (size_t r = 0; r < input.tokens.size(); ++r) {
    report.load.bars.push_back("rank " + std::to_string(r));
    report.load.values.push_back({input.tokens[r]});
  }
  report.load_note = fixed(result.rates.imbalance, "busiest rank over the mean: %.3f");
  report.plan = job.plan;
  report.tables = sizes(job);
  report.results = results(job, result);
  report.command = input.command;
  report.config = to_yaml(job.run);
  report.provenance = {{"plan", digest(job.plan)}, {"model", job.model_digest}};
  diagnose::write_report(report, job.run_dir + "/report.html");
}

}  // namespace tautline::train
