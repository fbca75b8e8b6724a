// The report of a run: one HTML file that needs nothing else (no script, no font, no request), to
// be read in a browser, mailed, printed or kept beside the checkpoint. C++ draws the figures as
// inline SVG; a content security policy forbids all else, so a table's name cannot do any harm.
//
// Input are plain values that the trainer, or later a simulation, fills in. What is empty is left
// out.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tautline/diagnose/bars.h"
#include "tautline/diagnose/chart.h"
#include "tautline/plan/plan.h"

namespace tautline::diagnose {

/// A figure at the head of the page: "NDCG@10", "0.0502", "2.3x popularity".
struct Headline {
  std::string label, value, note;
};

/// Text cells; a header that starts with '>' is of a column of numbers, set to the right.
struct ReportTable {
  std::vector<std::string> headers;
  std::vector<std::vector<std::string>> rows;
  int emphasised_row = -1;  // the model among its baselines
  std::string note;
};

/// What the Plan does not say of a table.
struct TableSize {
  int64_t rows = 0, dim = 0;
  double weight_bytes = 0, optimizer_bytes = 0;  // over all ranks (a copy counts once)
};

struct Report {
  std::string title;                // the run's name
  std::string status = "finished";  // finished, stopped (SIGTERM), failed
  bool good = true;                 // of the status
  std::vector<std::string> facts;   // "model SASRec", "4 ranks on CPU", "29 Nov 2026"
  std::vector<Headline> headlines;
  std::vector<Chart> curves;  // loss first, then metrics with their baselines as levels
  StackedBars phases;         // seconds a step by rank and phase
  std::string phases_note;
  StackedBars load;  // tokens a step by rank: one part
  std::string load_note;
  Plan plan;
  std::map<std::string, TableSize> tables;  // by name, as in plan.tables
  ReportTable results;                      // final metrics beside the baselines'
  std::string command;                      // as typed
  std::string config;                       // resolved, YAML
  std::vector<std::pair<std::string, std::string>> provenance;  // version, commit, plan digest, ...
};

/// The whole page. The same report gives the same bytes.
std::string render(const Report& report);

/// Errors: a file that cannot be written.
void write_report(const Report& report, const std::string& path);

}  // namespace tautline::diagnose
