#include "tautline/train/run_files.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tautline/base/error.h"
#include "tautline/plan/plan_fields.h"
#include "tautline/timeline/file.h"
#include "tautline/timeline/merge.h"
#include "tautline/timeline/perfetto.h"
#include "tautline/train/run_fields.h"

namespace tautline::train {
namespace {

void save_text(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) throw user_error(path, " cannot be written");
}

}  // namespace

void write_configs(const Job& job) {
  save_text(job.run_dir + "/plan.yaml", to_yaml(job.plan));
  RunConfig run = job.run;
  run.model = "model.yaml";  // beside it: the folder's run.yaml can be run again
  save_text(job.run_dir + "/run.yaml", to_yaml(run));
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
  std::snprintf(origin, sizeof origin, "%.9f ", recorder.origin());
  const std::vector<std::string> clocks = exchange(origin + recorder.clock());
  if (rank != 0) return mine;
  std::vector<TimelinePart> parts;
  std::map<std::string, double> first_origins;  // of each clock: about the same moment
  for (int r = 0; r < ranks; ++r) {
    const double at = std::stod(clocks[r]);
    const std::string clock = clocks[r].substr(clocks[r].find(' ') + 1);
    const double first = first_origins.try_emplace(clock, at).first->second;
    parts.push_back({read_timeline(part(r)), at - first, clock});
  }
  align_by_collectives(parts);
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

}  // namespace tautline::train
