// A line chart as inline SVG: curves over steps, levels (baselines) as dashed lines, each named at
// its right end, so that nobody has to match colours with a legend.
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace tautline::diagnose {

struct Curve {
  std::string name;
  std::vector<double> x, y;  // equal length; points that are not finite are gaps
  bool noisy = false;        // drawn faint with its running mean on top
};

struct Level {
  std::string name;
  double value = 0;
};

struct Chart {
  std::string title;    // "NDCG@10 on validation"
  std::string y_label;  // its unit or range, "nats"; may be empty
  std::string x_label = "step";
  std::vector<Curve> curves;
  std::vector<Level> levels;
  bool from_zero = false;
  double x_from =
      std::numeric_limits<double>::quiet_NaN();  // left edge; NaN: where the curves begin
  bool wide = false;                             // takes the whole row
};

/// <svg>, or "" where no curve has a point.
std::string render_chart(const Chart& chart);

/// At most two points a pixel column, its least and its greatest, in order: peaks stay.
std::vector<size_t> visible_points(const std::vector<double>& x, const std::vector<double>& y,
                                   size_t columns);

/// Mean over the points from i - reach to i + reach that there are and are finite. Both sides, so
/// that a falling curve's mean does not lag behind it.
std::vector<double> running_mean(const std::vector<double>& y, size_t reach);

}  // namespace tautline::diagnose
