#include "tautline/train/metric_log.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>

#include <nlohmann/json.hpp>

#include "tautline/base/error.h"
#include "tautline/base/new_file.h"
#include "tautline/base/units.h"
#include "tautline/train/event_file.h"

namespace tautline::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFile = "/metrics.jsonl";

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Json to_json(const MetricRecord& record) {
  Json out = {
      {"kind", record.kind}, {"step", record.step}, {"epoch", record.epoch}, {"time", record.time}};
  for (const auto& [name, value] : record.values) out[name] = value;  // NaN becomes null
  return out;
}

std::optional<MetricRecord> from_line(const std::string& line) {
  const Json in = Json::parse(line, nullptr, false);
  if (!in.is_object() || !in.contains("kind")) return std::nullopt;
  for (const char* key : {"step", "epoch", "time"})
    if (!in.contains(key) || !in[key].is_number()) return std::nullopt;
  MetricRecord record;
  for (const auto& [key, value] : in.items()) {
    if (key == "kind")
      record.kind = value.is_string() ? value.get<std::string>() : "";
    else if (!value.is_number() && !value.is_null())
      continue;
    else if (key == "step")
      record.step = value.get<int64_t>();
    else if (key == "epoch")
      record.epoch = value.get<int64_t>();
    else if (key == "time")
      record.time = value.get<double>();
    else
      record.values.emplace_back(
          key, value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
  }
  return record;
}

using Measured = std::set<std::pair<std::string, int64_t>>;  // kind, step

// Whole lines of steps up to `step`, each as it stands.
std::string lines_until(const std::string& path, int64_t step, Measured& measured) {
  std::ifstream in(path);
  std::string line, kept;
  while (std::getline(in, line)) {
    const std::optional<MetricRecord> record = in.eof() ? std::nullopt : from_line(line);
    if (!record || record->step > step) continue;
    kept += line + "\n";
    measured.emplace(record->kind, record->step);
  }
  return kept;
}

void keep_until(const std::string& path, int64_t step, Measured& measured) {
  const std::string kept = lines_until(path, step, measured);
  write_text_file(path, kept);
}

std::string value_text(const std::string& name, double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  if (name.ends_with("_per_s")) return rounded_count(value) + "/s";
  char text[32];
  const double size = std::abs(value);
  const bool plain = size == 0 || (size >= 1e-3 && size < 1e5);
  std::snprintf(text, sizeof text, !plain ? "%.3e" : size < 1 ? "%.4f" : "%.4g", value);
  return text;
}

}  // namespace

MetricLog::MetricLog(const std::string& run_dir, int64_t resume_step) : path_(run_dir + kFile) {
  std::error_code code;
  fs::create_directories(run_dir, code);
  if (code) throw user_error("cannot create folder ", run_dir, ": ", code.message());
  if (resume_step > 0 && fs::exists(path_, code)) keep_until(path_, resume_step, measured_);
  errno = 0;
  jsonl_.open(path_, resume_step > 0 ? std::ios::app : std::ios::trunc);
  if (!jsonl_) throw user_error("cannot write ", path_, ": ", std::strerror(errno));
  if (resume_step == 0) fs::remove_all(run_dir + "/tensorboard", code);
  events_ = std::make_unique<EventFile>(run_dir + "/tensorboard", resume_step);
}

MetricLog::~MetricLog() = default;

void MetricLog::write(const MetricRecord& record) {
  if (measured_.contains({record.kind, record.step})) return;
  MetricRecord timed = record;
  if (timed.time == 0) timed.time = seconds_since_1970();
  errno = 0;
  jsonl_ << to_json(timed).dump() << '\n' << std::flush;
  if (!jsonl_) throw user_error("cannot write ", path_, ": ", std::strerror(errno));
  std::vector<std::pair<std::string, double>> scalars;
  for (const auto& [name, value] : timed.values)
    scalars.emplace_back(timed.kind + "/" + name, value);
  events_->write(timed.time, timed.step, scalars);
}

std::vector<MetricRecord> read_metric_log(const std::string& run_dir) {
  std::ifstream in(run_dir + kFile);
  if (!in) throw user_error("cannot read ", run_dir, kFile);
  std::vector<MetricRecord> records;
  std::string line;
  while (std::getline(in, line)) {
    std::optional<MetricRecord> record = from_line(line);
    if (record) records.push_back(std::move(*record));
  }
  return records;
}

std::string terminal_text(const std::vector<std::pair<std::string, double>>& values) {
  std::string out;
  for (const auto& [name, value] : values) {
    std::string label = name;
    if (label.ends_with("_per_s")) label.resize(label.size() - 6);
    const std::string text = value_text(name, value);
    // A rate reads as one: "12.3 k tokens/s".
    const bool rate = label.size() < name.size();
    if (!out.empty()) out += "  ";
    out += rate ? text.substr(0, text.size() - 2) + " " + label + "/s" : label + " " + text;
  }
  return out;
}

}  // namespace tautline::train
