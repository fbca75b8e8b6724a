#include "tautline/diagnose/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace tautline::diagnose {
namespace {

std::string with_decimals(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value == 0 ? 0.0 : value);  // no -0
  return text;
}

std::string without_trailing_zeros(std::string text) {
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

struct Scale {
  double factor;
  const char* suffix;
};
Scale scale_of(double size) {
  if (size >= 1e9) return {1e9, "G"};
  if (size >= 1e6) return {1e6, "M"};
  if (size >= 1e4) return {1e3, "k"};
  return {1, ""};
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
          out += "\xEF\xBF\xBD";
        else
          out += c;
    }
  }
  return out;
}

std::string coordinate(double value) { return without_trailing_zeros(with_decimals(value, 2)); }

Axis round_axis(double low, double high, int count) {
  if (!std::isfinite(low) || !std::isfinite(high)) return {};
  if (!(low < high)) {  // one value: some room around it
    const double room = low == 0 ? 1 : std::abs(low) * 0.1;
    low -= room;
    high += room;
  }
  const double rough = (high - low) / std::max(1, count);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double digit = rough / power;
  const double step = power * (digit <= 1.0001   ? 1
                               : digit <= 2.0001 ? 2
                               : digit <= 5.0001 ? 5
                                                 : 10);
  // A hair of slack: 0.30000000000000004 does not open a step of its own.
  return {std::floor(low / step + 1e-9) * step, std::ceil(high / step - 1e-9) * step, step};
}

Axis tight_axis(double low, double high, int count) {
  Axis axis = round_axis(low, high, count);
  if (low < high) {
    axis.first = low;
    axis.last = high;
  }
  return axis;
}

std::vector<double> Axis::ticks() const {
  std::vector<double> out;
  const auto begin = static_cast<int64_t>(std::ceil(first / step - 1e-9));
  const auto end = static_cast<int64_t>(std::floor(last / step + 1e-9));
  for (int64_t i = begin; i <= end; ++i) out.push_back(static_cast<double>(i) * step);
  return out;
}

std::string Axis::label(double tick) const {
  const Scale scale = scale_of(std::max(std::abs(first), std::abs(last)));
  const double scaled_step = step / scale.factor;
  const int decimals =
      std::clamp(static_cast<int>(std::ceil(-std::log10(scaled_step) - 1e-9)), 0, 9);
  const double value = std::abs(tick) < step * 1e-6 ? 0 : tick / scale.factor;
  return with_decimals(value, decimals) + (value == 0 ? "" : scale.suffix);
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
  const double size = std::abs(value);
  if (size != 0 && size < 1e-4) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2e", value);
    return text;
  }
  if (size < 1) return with_decimals(value, 4);
  const Scale scale = scale_of(size);
  const double scaled = size / scale.factor;
  const int digits = scaled < 10 ? (scale.factor > 1 ? 2 : 3) : scaled < 100 ? 2 : 1;
  return without_trailing_zeros(with_decimals(value / scale.factor, digits)) + scale.suffix;
}

std::string grouped(int64_t value) {
  std::string digits = std::to_string(value);
  const size_t sign = value < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > sign + 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::string even_number(double value, double greatest) {
  const double size = std::abs(greatest);
  if (!std::isfinite(value) || size < 1e-3) return short_number(value);
  if (size >= 1e5) {
    const Scale scale = scale_of(size);
    return even_number(value / scale.factor, greatest / scale.factor) + scale.suffix;
  }
  const int decimals = size >= 1000 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : size >= 0.1 ? 3 : 4;
  return decimals > 0 ? with_decimals(value, decimals) : grouped(std::llround(value));
}

std::string series_colour(size_t i) { return joined("var(--c", i % kSeriesColours, ")"); }
std::string text_on_series(size_t i) { return joined("var(--on", i % kSeriesColours, ")"); }

double text_pixels(const std::string& text, double font_size) {
  double width = 0;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) == 0x80) continue;  // inside a code point
    const bool narrow = std::string("il.,:;'|!()[]tfjr I").find(c) != std::string::npos;
    width += narrow ? 0.36 : c >= 'A' && c <= 'Z' ? 0.7 : 0.585;
  }
  return width * font_size;
}

std::string fitted(const std::string& text, double font_size, double pixels) {
  if (text_pixels(text, font_size) <= pixels) return text;
  std::string out = text;
  while (!out.empty() && text_pixels(out, font_size) + font_size > pixels) {
    while (out.size() > 1 && (static_cast<unsigned char>(out.back()) & 0xC0) == 0x80)
      out.pop_back();
    out.pop_back();
  }
  return out + "…";
}

}  // namespace tautline::diagnose
