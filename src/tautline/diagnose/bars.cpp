#include "tautline/diagnose/bars.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tautline/diagnose/svg.h"

namespace tautline::diagnose {
namespace {

constexpr double kWidth = 1080, kRight = 84, kFont = 12;

struct Layout {
  double left = 60, bar = 24, pitch = 32, top = 6, bottom = 0;
  size_t name_every = 1;
  double longest = 0;
  bool whole = false;
  Axis axis;
  std::string number(double value) const {
    return whole && longest < 1000 ? grouped(std::llround(value)) : even_number(value, longest);
  }
  double px(double value) const { return axis.place(value, left, kWidth - kRight); }
  double y_of(size_t bar_number) const { return top + static_cast<double>(bar_number) * pitch; }
};

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

Layout lay_out(const StackedBars& bars) {
  Layout layout;
  double& longest = layout.longest;
  layout.whole = bars.whole;
  if (bars.mean_line) layout.top = 22;  // its label stands above the bars
  for (const std::string& name : bars.bars)
    layout.left = std::max(layout.left, std::min(160.0, text_pixels(name, kFont) + 14));
  for (const auto& values : bars.values) longest = std::max(longest, sum_of(values));
  if (bars.bars.size() > 32) {
    layout.bar = 7;
    layout.pitch = 9;
    layout.name_every = bars.bars.size() > 128 ? 8 : 4;
  }
  layout.axis = tight_axis(0, longest > 0 ? longest : 1, 8);
  layout.bottom = layout.y_of(bars.bars.size()) + 2;
  return layout;
}

std::string fill_of(const StackedBars& bars, size_t part) {
  return bars.parts[part] == "idle" ? "var(--idle)" : series_colour(part);
}

std::string draw_axis(const StackedBars& bars, const Layout& layout) {
  std::string out;
  for (double tick : layout.axis.ticks()) {
    const std::string x = coordinate(layout.px(tick));
    out += joined("<line class=\"grid\" x1=\"", x, "\" x2=\"", x, "\" y1=\"", layout.top,
                  "\" y2=\"", layout.bottom, "\"/><text class=\"tick\" text-anchor=\"middle\" x=\"",
                  x, "\" y=\"", layout.bottom + 16, "\">", layout.axis.label(tick), "</text>");
  }
  out += joined("<text class=\"label\" x=\"", kWidth - kRight + 14, "\" y=\"", layout.bottom + 16,
                "\">", escaped(bars.unit), "</text>");
  return out;
}

std::string draw_bar(const StackedBars& bars, size_t number, const Layout& layout) {
  const std::vector<double>& values = bars.values[number];
  const double y = layout.y_of(number), middle = y + layout.bar / 2 + 4;
  std::string out;
  double from = 0;
  for (size_t part = 0; part < bars.parts.size() && part < values.size(); ++part) {
    if (!(values[part] > 0)) continue;
    const double x = layout.px(from), width = layout.px(from + values[part]) - x;
    const std::string text = layout.number(values[part]);
    out += joined("<rect x=\"", coordinate(x), "\" y=\"", coordinate(y), "\" width=\"",
                  coordinate(std::max(0.0, width - (width > 3 ? 1 : 0))), "\" height=\"",
                  layout.bar, "\" style=\"fill:", fill_of(bars, part), "\"><title>",
                  escaped(bars.bars[number]), ", ", escaped(bars.parts[part]), ": ", text, " ",
                  escaped(bars.unit), "</title></rect>");
    if (layout.bar >= 20 && bars.parts.size() > 1 && width > text_pixels(text, kFont) + 10)
      out += joined(
          "<text class=\"in\" text-anchor=\"middle\" x=\"", coordinate(x + width / 2 - 0.5),
          "\" y=\"", coordinate(middle),
          "\" style=\"fill:", bars.parts[part] == "idle" ? "var(--ink)" : text_on_series(part),
          "\">", text, "</text>");
    from += values[part];
  }
  if (number % layout.name_every == 0)
    out += joined("<text class=\"tick\" text-anchor=\"end\" x=\"", layout.left - 10, "\" y=\"",
                  coordinate(middle), "\">",
                  escaped(fitted(bars.bars[number], kFont, layout.left - 12)), "</text>");
  if (layout.bar >= 20 && bars.parts.size() == 1)  // inside, where no mean line runs through it
    out += joined("<text class=\"in\" x=\"", layout.left + 9, "\" y=\"", coordinate(middle),
                  "\" style=\"fill:", text_on_series(0), "\">", layout.number(from), "</text>");
  else if (layout.bar >= 20)
    out += joined("<text class=\"end\" x=\"", coordinate(layout.px(from) + 8), "\" y=\"",
                  coordinate(middle), "\"><tspan class=\"value\">", layout.number(from),
                  "</tspan></text>");
  return out;
}

std::string legend(const StackedBars& bars) {
  if (bars.parts.size() < 2) return "";
  std::string out = "<ul class=\"legend\">";
  for (size_t part = 0; part < bars.parts.size(); ++part)
    out += joined("<li><span class=\"swatch\" style=\"background:", fill_of(bars, part),
                  "\"></span>", escaped(bars.parts[part]), "</li>");
  return out + "</ul>";
}

}  // namespace

std::string render_bars(const StackedBars& bars) {
  if (bars.empty()) return "";
  const Layout layout = lay_out(bars);
  std::string out = legend(bars);
  out += joined("<div class=\"scroll\"><svg class=\"bars\" viewBox=\"0 0 ", kWidth, " ",
                layout.bottom + 24, "\" role=\"img\" aria-label=\"", escaped(bars.title), "\">");
  out += draw_axis(bars, layout);
  double sum = 0;
  for (size_t b = 0; b < bars.bars.size(); ++b) {
    out += draw_bar(bars, b, layout);
    sum += sum_of(bars.values[b]);
  }
  if (bars.mean_line) {
    const double mean = sum / static_cast<double>(bars.bars.size());
    const std::string x = coordinate(layout.px(mean));
    out += joined("<line class=\"level\" x1=\"", x, "\" x2=\"", x, "\" y1=\"", layout.top - 4,
                  "\" y2=\"", layout.bottom, "\"/><text class=\"tick\" text-anchor=\"middle\" x=\"",
                  x, "\" y=\"", layout.top - 9, "\">mean ", layout.number(mean), "</text>");
  }
  return out + "</svg></div>";
}

StackedBars phase_bars(const std::vector<std::map<std::string, double>>& seconds_by_rank,
                       double steps) {
  StackedBars bars;
  bars.title = "time of a step by rank and phase";
  bars.unit = "ms";
  std::map<std::string, double> sums;
  for (const auto& of_rank : seconds_by_rank)
    for (const auto& [kind, seconds] : of_rank) sums[kind] += seconds;
  // The order of a step first, then whatever else there is, and idle last.
  std::vector<std::string> kinds;
  for (const char* kind :
       {"input", "ids", "lookup", "all_to_all", "forward", "backward", "all_reduce", "optimizer"})
    if (sums.erase(kind) > 0) kinds.push_back(kind);
  const bool idle = sums.erase("idle") > 0;
  for (const auto& [kind, seconds] : sums) kinds.push_back(kind);
  if (idle) kinds.push_back("idle");
  for (const std::string& kind : kinds) {
    bars.parts.push_back(kind);
    std::replace(bars.parts.back().begin(), bars.parts.back().end(), '_', '-');
  }
  for (size_t rank = 0; rank < seconds_by_rank.size(); ++rank) {
    bars.bars.push_back("rank " + std::to_string(rank));
    std::vector<double>& values = bars.values.emplace_back();
    for (const std::string& kind : kinds) {
      const auto found = seconds_by_rank[rank].find(kind);
      const double seconds = found == seconds_by_rank[rank].end() ? 0 : found->second;
      values.push_back(steps > 0 ? seconds * 1e3 / steps : 0);
    }
  }
  return bars;
}

}  // namespace tautline::diagnose
