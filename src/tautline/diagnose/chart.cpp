#include "tautline/diagnose/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tautline/diagnose/svg.h"

namespace tautline::diagnose {
namespace {

constexpr double kWidth = 560, kWideWidth = 1136, kHeight = 300;
constexpr double kLeft = 50, kTop = 22, kBottom = 42, kFont = 12;
constexpr double kLabelGap = 16;  // between the lines of two labels

struct Range {
  double low = std::numeric_limits<double>::infinity(),
         high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

struct Plot {
  Axis x, y;
  double width = kWidth, right = kWidth - 20;
  double bottom = kHeight - kBottom;
  double px(double value) const { return x.place(value, kLeft, right); }
  double py(double value) const { return y.place(value, bottom, kTop); }
};

// One line's name at its right end.
struct EndLabel {
  std::string name, value, colour;
  double at = 0;      // pixel where the line ends
  double label = 0;   // pixel where its label stands
  double from_x = 0;  // pixel where the line ends
};

double last_finite(const std::vector<double>& values) {
  for (auto v = values.rbegin(); v != values.rend(); ++v)
    if (std::isfinite(*v)) return *v;
  return std::numeric_limits<double>::quiet_NaN();
}

// What of a curve decides its range: a noisy one's mean and nearly all of its points, so that one
// spike in step 1 does not press the rest flat.
void add_to_range(const Curve& curve, Range& range) {
  std::vector<double> y;
  for (double value : curve.y)
    if (std::isfinite(value)) y.push_back(value);
  if (curve.noisy && y.size() >= 50) {
    std::sort(y.begin(), y.end());
    const size_t cut = y.size() / 200;
    range.add(y[cut]);
    range.add(y[y.size() - 1 - cut]);
    for (double value : running_mean(curve.y, curve.y.size() / 100)) range.add(value);
    return;
  }
  for (double value : y) range.add(value);
}

std::string path_of(const Curve& curve, const std::vector<double>& y, const Plot& plot) {
  std::string path;
  bool pen_down = false;
  for (size_t i : visible_points(curve.x, y, static_cast<size_t>(plot.width))) {
    if (!std::isfinite(y[i]) || !std::isfinite(curve.x[i])) {
      pen_down = false;
      continue;
    }
    const double clamped = std::clamp(y[i], plot.y.first, plot.y.last);
    path += joined(pen_down ? "L" : "M", coordinate(plot.px(curve.x[i])), " ",
                   coordinate(plot.py(clamped)));
    pen_down = true;
  }
  return path;
}

std::string draw_curve(const Curve& curve, size_t number, const Plot& plot) {
  const std::string colour = series_colour(number);
  std::string out;
  std::vector<double> line = curve.y;
  if (curve.noisy && curve.y.size() >= 50) {
    out += joined("<path class=\"raw\" style=\"stroke:", colour, "\" d=\"",
                  path_of(curve, curve.y, plot), "\"/>");
    line = running_mean(curve.y, curve.y.size() / 100);
  }
  out += joined("<path class=\"curve\" style=\"stroke:", colour, "\" d=\"",
                path_of(curve, line, plot), "\"><title>", escaped(curve.name), "</title></path>");
  if (line.size() <= 40)  // few enough to be seen one by one
    for (size_t i = 0; i < line.size(); ++i)
      if (std::isfinite(line[i]))
        out += joined("<circle r=\"2.6\" style=\"fill:", colour, "\" cx=\"",
                      coordinate(plot.px(curve.x[i])), "\" cy=\"", coordinate(plot.py(line[i])),
                      "\"><title>", escaped(curve.name), " at ", short_number(curve.x[i]), ": ",
                      short_number(line[i]), "</title></circle>");
  return out;
}

std::string draw_axes(const Chart& chart, const Plot& plot) {
  std::string out;
  for (double tick : plot.y.ticks()) {
    const std::string y = coordinate(plot.py(tick));
    out +=
        joined("<line class=\"grid\" x1=\"", kLeft, "\" x2=\"", coordinate(plot.right), "\" y1=\"",
               y, "\" y2=\"", y, "\"/><text class=\"tick\" text-anchor=\"end\" x=\"", kLeft - 8,
               "\" y=\"", coordinate(plot.py(tick) + 4), "\">", plot.y.label(tick), "</text>");
  }
  for (double tick : plot.x.ticks())
    out += joined("<text class=\"tick\" text-anchor=\"middle\" x=\"", coordinate(plot.px(tick)),
                  "\" y=\"", plot.bottom + 18, "\">", plot.x.label(tick),
                  "</text><line class=\"mark\" "
                  "x1=\"",
                  coordinate(plot.px(tick)), "\" x2=\"", coordinate(plot.px(tick)), "\" y1=\"",
                  plot.bottom, "\" y2=\"", plot.bottom + 4, "\"/>");
  out += joined("<line class=\"axis\" x1=\"", kLeft, "\" x2=\"", coordinate(plot.right), "\" y1=\"",
                plot.bottom, "\" y2=\"", plot.bottom,
                "\"/><text class=\"label\" text-anchor=\"middle\" "
                "x=\"",
                coordinate((kLeft + plot.right) / 2), "\" y=\"", kHeight - 6, "\">",
                escaped(chart.x_label), "</text>");
  if (!chart.y_label.empty())
    out += joined("<text class=\"label\" x=\"0\" y=\"10\">", escaped(chart.y_label), "</text>");
  return out;
}

// Labels keep their order and at least a line between them, as near to their lines as that allows.
void spread(std::vector<EndLabel>& labels, double top, double bottom) {
  std::sort(labels.begin(), labels.end(),
            [](const EndLabel& a, const EndLabel& b) { return a.at < b.at; });
  double least = top;
  for (EndLabel& label : labels) {
    label.label = std::max(label.at, least);
    least = label.label + kLabelGap;
  }
  double most = bottom;
  for (auto label = labels.rbegin(); label != labels.rend(); ++label) {
    label->label = std::min(label->label, most);
    most = label->label - kLabelGap;
  }
}

std::string draw_labels(std::vector<EndLabel> labels, const Plot& plot) {
  spread(labels, kTop, plot.bottom);
  std::string out;
  for (const EndLabel& label : labels) {
    const double x = plot.right + 6;
    out += joined("<path class=\"leader\" style=\"stroke:", label.colour, "\" d=\"M",
                  coordinate(label.from_x), " ", coordinate(label.at), "L", coordinate(x), " ",
                  coordinate(label.at), "L", coordinate(x + 8), " ", coordinate(label.label),
                  "\"/><text class=\"end\" x=\"", coordinate(x + 12), "\" y=\"",
                  coordinate(label.label + 4), "\">",
                  escaped(fitted(label.name, kFont, kWidth * 0.22)), " <tspan class=\"value\">",
                  label.value, "</tspan></text>");
  }
  return out;
}

double label_room(const Chart& chart) {
  double most = 0;
  const auto consider = [&](const std::string& name, double value) {
    most = std::max(most, text_pixels(fitted(name, kFont, kWidth * 0.22), kFont) +
                              text_pixels(short_number(value) + " ", kFont * 1.06));
  };
  for (const Curve& curve : chart.curves) consider(curve.name, last_finite(curve.y));
  for (const Level& level : chart.levels) consider(level.name, level.value);
  return most + 24;
}

}  // namespace

std::vector<double> running_mean(const std::vector<double>& y, size_t reach) {
  std::vector<double> sums = {0}, counts = {0};
  for (double value : y) {
    sums.push_back(sums.back() + (std::isfinite(value) ? value : 0));
    counts.push_back(counts.back() + (std::isfinite(value) ? 1 : 0));
  }
  std::vector<double> out(y.size(), std::numeric_limits<double>::quiet_NaN());
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t begin = i - std::min(i, reach), end = std::min(y.size(), i + reach + 1);
    if (std::isfinite(y[i])) out[i] = (sums[end] - sums[begin]) / (counts[end] - counts[begin]);
  }
  return out;
}

std::vector<size_t> visible_points(const std::vector<double>& x, const std::vector<double>& y,
                                   size_t columns) {
  std::vector<size_t> all(x.size());
  for (size_t i = 0; i < x.size(); ++i) all[i] = i;
  if (x.size() <= 2 * columns || columns == 0) return all;
  std::vector<size_t> out = {0};
  for (size_t column = 0; column < columns; ++column) {
    const size_t begin = x.size() * column / columns, end = x.size() * (column + 1) / columns;
    size_t least = begin, most = begin;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(y[i])) continue;
      if (!std::isfinite(y[least]) || y[i] < y[least]) least = i;
      if (!std::isfinite(y[most]) || y[i] > y[most]) most = i;
    }
    if (std::min(least, most) != out.back()) out.push_back(std::min(least, most));
    if (least != most && std::max(least, most) != out.back()) out.push_back(std::max(least, most));
  }
  if (out.back() != x.size() - 1) out.push_back(x.size() - 1);
  return out;
}

std::string render_chart(const Chart& chart) {
  Range x, y;
  for (const Curve& curve : chart.curves) {
    for (size_t i = 0; i < curve.x.size(); ++i)
      if (std::isfinite(curve.y[i])) x.add(curve.x[i]);
    add_to_range(curve, y);
  }
  if (x.empty() || y.empty()) return "";
  x.add(chart.x_from);
  for (const Level& level : chart.levels) y.add(level.value);

  Plot plot;
  plot.width = chart.wide ? kWideWidth : kWidth;
  plot.right = plot.width - label_room(chart);
  const double air = (y.high - y.low) * 0.05;
  const bool from_zero = chart.from_zero && y.low >= 0;
  plot.y = tight_axis(from_zero ? 0 : y.low - air, y.high + air, 5);
  // A run that begins at step 1 begins at the left edge; so does one that goes on from step 5,000.
  plot.x = tight_axis(x.low > 0 && x.low < x.high * 0.1 ? 0 : x.low, x.high, 5);
  std::string out = joined("<svg class=\"chart\" viewBox=\"0 0 ", plot.width, " ", kHeight,
                           "\" role=\"img\" aria-label=\"", escaped(chart.title), "\">");
  out += draw_axes(chart, plot);
  std::vector<EndLabel> labels;
  for (const Level& level : chart.levels) {
    const double at = plot.py(level.value);
    out += joined("<line class=\"level\" x1=\"", kLeft, "\" x2=\"", coordinate(plot.right),
                  "\" y1=\"", coordinate(at), "\" y2=\"", coordinate(at), "\"><title>",
                  escaped(level.name), ": ", short_number(level.value), "</title></line>");
    labels.push_back({level.name, short_number(level.value), "var(--muted)", at, at, plot.right});
  }
  for (size_t c = 0; c < chart.curves.size(); ++c) {
    const Curve& curve = chart.curves[c];
    out += draw_curve(curve, c, plot);
    const bool smooth = curve.noisy && curve.y.size() >= 50;
    const double last = last_finite(smooth ? running_mean(curve.y, curve.y.size() / 100) : curve.y);
    if (!std::isfinite(last)) continue;
    const double at = plot.py(std::clamp(last, plot.y.first, plot.y.last));
    labels.push_back(
        {curve.name, short_number(last), series_colour(c), at, at, plot.px(last_finite(curve.x))});
  }
  return out + draw_labels(std::move(labels), plot) + "</svg>";
}

}  // namespace tautline::diagnose
