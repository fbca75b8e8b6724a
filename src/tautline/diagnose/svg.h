// The small words of a figure: escaped text, numbers, ticks, colours.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

namespace tautline::diagnose {

/// Text for HTML and SVG, inside elements and quoted attributes. Control characters, which neither
/// may hold, become U+FFFD.
std::string escaped(const std::string& text);

/// A coordinate: at most two decimals, none where it has none.
std::string coordinate(double value);

/// Adds up text: svg.add("<rect x='", Coordinate, "'/>").
template <class... Parts>
std::string joined(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// An axis from `first` to `last` in round steps (1, 2 or 5 times a power of ten) that covers
/// [low, high], with about `count` steps.
struct Axis {
  double first = 0, last = 1, step = 1;
  std::vector<double> ticks() const;
  /// A tick as short as its axis allows: 0.02, 150, 20k, 1.5M.
  std::string label(double tick) const;
  /// Where `value` lies between two pixels.
  double place(double value, double from, double to) const {
    return from + (value - first) / (last - first) * (to - from);
  }
};
Axis round_axis(double low, double high, int count);
/// The same steps, but the axis ends where the data does.
Axis tight_axis(double low, double high, int count);

/// A value with three or four significant digits: 5.213, 0.0502, 12.3k.
std::string short_number(double value);

/// Like short_number, but with the decimals that `greatest` deserves (three or four digits of it),
/// so that numbers side by side have as many: 9.8 beside 124.2; 5,236 beside 5,289.
std::string even_number(double value, double greatest);
/// 2,000,001
std::string grouped(int64_t value);

/// The CSS colour of series i (var(--c0) ...; the page defines them for light and dark).
std::string series_colour(size_t i);
/// The CSS colour of text on it.
std::string text_on_series(size_t i);
inline constexpr size_t kSeriesColours = 8;

/// Pixels that text of the page's font takes, about: for room, never for exact placing.
double text_pixels(const std::string& text, double font_size);
/// Cut with an ellipsis to fit.
std::string fitted(const std::string& text, double font_size, double pixels);

}  // namespace tautline::diagnose
