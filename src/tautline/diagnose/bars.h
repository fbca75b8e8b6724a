// Horizontal bars by rank, each of stacked parts: time by phase, load in tokens, memory by table.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace tautline::diagnose {

struct StackedBars {
  std::string title;                        // for those who cannot see it
  std::string unit;                         // ms, tokens
  std::vector<std::string> parts;           // names, in order; "idle" is drawn in grey
  std::vector<std::string> bars;            // "rank 0", ...
  std::vector<std::vector<double>> values;  // [bars][parts], not negative
  bool mean_line = false;                   // over the bars' sums
  bool whole = false;                       // values are shown without decimals
  bool empty() const { return bars.empty() || parts.empty(); }
};

/// Legend and <svg>; "" where empty. More than 32 bars are drawn thin, with every so-many-th named.
std::string render_bars(const StackedBars& bars);

/// Milliseconds of one step from seconds by phase over `steps` steps, [ranks]. Phases stand in the
/// order of a step, collectives under their usual names (all-to-all).
StackedBars phase_bars(const std::vector<std::map<std::string, double>>& seconds_by_rank,
                       double steps);

}  // namespace tautline::diagnose
