#include "tautline/train/run_files.h"

#include <cstdio>
#include <filesystem>
#include <sstream>

#include "tautline/base/error.h"
#include "tautline/base/new_file.h"
#include "tautline/plan/plan_fields.h"
#include "tautline/timeline/file.h"
#include "tautline/timeline/merge.h"
#include "tautline/timeline/perfetto.h"
#include "tautline/train/run_fields.h"

namespace tautline::train {

void write_configs(const Job& job) {
  write_text_file(job.run_dir + "/plan.yaml", to_yaml(job.plan));
  RunConfig run = job.run;
  run.model = "./model.yaml";  // beside it: the folder's run.yaml can be run again
  write_text_file(job.run_dir + "/run.yaml", to_yaml(run));
  write_text_file(job.run_dir + "/model.yaml", to_yaml(job.model));
}

namespace {

std::string part_of(const Job& job, int rank) {
  return job.run_dir + "/timeline-rank-" + std::to_string(rank) + ".jsonl";
}

/// What a rank tells rank 0: when its recorder began, by which clock, and what kept its part from
/// being written.
struct PartNote {
  double origin = 0;
  std::string clock, error;
};

std::string text_of(const PartNote& note) {
  char origin[40];
  std::snprintf(origin, sizeof origin, "%.9f", note.origin);
  return std::string(origin) + "\n" + note.clock + "\n" + note.error;
}

PartNote note_from(const std::string& text) {
  const size_t first = text.find('\n'), second = text.find('\n', first + 1);
  return {std::stod(text), text.substr(first + 1, second - first - 1), text.substr(second + 1)};
}

/// The parts that were written.
std::vector<TimelinePart> read_parts(const Job& job, const std::vector<std::string>& notes,
                                     Unwritten& unwritten) {
  std::vector<TimelinePart> parts;
  std::map<std::string, double> first_origins;  // of each clock: about the same moment
  for (size_t r = 0; r < notes.size(); ++r) {
    const PartNote note = note_from(notes[r]);
    if (!note.error.empty()) {
      unwritten.push_back(note.error);
      continue;
    }
    const double first = first_origins.try_emplace(note.clock, note.origin).first->second;
    keep_going(unwritten, [&] {
      parts.push_back(
          {read_timeline(part_of(job, static_cast<int>(r))), note.origin - first, note.clock});
    });
  }
  return parts;
}

}  // namespace

Timeline write_timelines(const Job& job, const Recorder& recorder, int rank, int ranks,
                         const Exchange& exchange, Unwritten& unwritten) {
  namespace fs = std::filesystem;
  Timeline mine = recorder.timeline();
  mine.header.plan_digest = digest(job.plan);
  mine.header.world = ranks;
  Unwritten of_part;
  keep_going(of_part, [&] { write_timeline(mine, part_of(job, rank)); });
  const std::vector<std::string> notes = exchange(
      text_of({recorder.origin(), recorder.clock(), of_part.empty() ? "" : of_part.front()}));
  if (rank != 0) return mine;
  std::vector<TimelinePart> parts = read_parts(job, notes, unwritten);
  std::error_code ignored;
  for (int r = 0; r < ranks; ++r) fs::remove(part_of(job, r), ignored);  // room for what follows
  if (parts.size() < notes.size()) return mine;  // a timeline without some ranks says wrong things
  align_by_collectives(parts);
  const Timeline joined = merge(std::move(parts));
  keep_going(unwritten, [&] { write_timeline(joined, job.run_dir + "/timeline.jsonl"); });
  keep_going(unwritten, [&] { write_perfetto(joined, job.run_dir + "/timeline.json"); });
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
