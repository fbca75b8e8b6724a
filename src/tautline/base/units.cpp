#include "tautline/base/units.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace tautline {
namespace {

struct Scale {
  const char* name;
  double factor;
  int power;  // factor is 10^power; kNotDecimal otherwise
};
constexpr int kNotDecimal = 1000;

// Largest first: of two texts of one length the first wins.
const std::vector<Scale>& scales(Unit unit) {
  static const std::vector<Scale> bytes = {{"TiB", 0x1p40, kNotDecimal},
                                           {"GiB", 0x1p30, kNotDecimal},
                                           {"MiB", 0x1p20, kNotDecimal},
                                           {"KiB", 0x1p10, kNotDecimal},
                                           {"TB", 1e12, 12},
                                           {"GB", 1e9, 9},
                                           {"MB", 1e6, 6},
                                           {"kB", 1e3, 3},
                                           {"B", 1, 0}};
  static const std::vector<Scale> seconds = {
      {"h", 3600, kNotDecimal}, {"min", 60, kNotDecimal}, {"s", 1, 0},
      {"ms", 1e-3, -3},         {"us", 1e-6, -6},         {"ns", 1e-9, -9}};
  static const std::vector<Scale> byte_rates = {{"TB/s", 1e12, 12},
                                                {"GB/s", 1e9, 9},
                                                {"MB/s", 1e6, 6},
                                                {"kB/s", 1e3, 3},
                                                {"B/s", 1, 0},
                                                {"TiB/s", 0x1p40, kNotDecimal},
                                                {"GiB/s", 0x1p30, kNotDecimal},
                                                {"MiB/s", 0x1p20, kNotDecimal}};
  static const std::vector<Scale> flop_rates = {{"PFLOP/s", 1e15, 15},
                                                {"TFLOP/s", 1e12, 12},
                                                {"GFLOP/s", 1e9, 9},
                                                {"MFLOP/s", 1e6, 6},
                                                {"FLOP/s", 1, 0}};
  switch (unit) {
    case Unit::kBytes:
      return bytes;
    case Unit::kSeconds:
      return seconds;
    case Unit::kBytesPerSecond:
      return byte_rates;
    case Unit::kFlopPerSecond:
      return flop_rates;
  }
  return bytes;
}

const char* base_name(Unit unit) {
  for (const Scale& scale : scales(unit))
    if (scale.factor == 1) return scale.name;
  return "";
}

// Digits without their separators; null where a '_' does not stand between two digits.
std::optional<std::string> without_separators(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const bool inside = i > 0 && i + 1 < text.size() && std::isdigit(text[i - 1]) != 0 &&
                        std::isdigit(text[i + 1]) != 0;
    if (!inside) return std::nullopt;
  }
  return out;
}

template <class Integer>
std::optional<Integer> integer(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const std::optional<std::string> digits = without_separators(text);
  if (!digits || digits->empty()) return std::nullopt;
  Integer value = 0;
  const auto [end, error] = std::from_chars(digits->data(), digits->data() + digits->size(), value);
  if (error != std::errc() || end != digits->data() + digits->size()) return std::nullopt;
  return value;
}

std::string with_separators(std::string digits) {
  const size_t sign = digits.starts_with('-') ? 1 : 0;
  if (digits.size() - sign < 5) return digits;
  for (size_t at = digits.size(); at > sign + 3;) digits.insert(at -= 3, 1, '_');
  return digits;
}

std::string three_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, std::abs(value) >= 100 ? "%.0f" : "%.3g", value);
  return text;
}

}  // namespace

std::optional<int64_t> parse_integer(std::string_view text) { return integer<int64_t>(text); }
std::optional<uint64_t> parse_unsigned(std::string_view text) { return integer<uint64_t>(text); }

std::optional<double> parse_number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const std::optional<std::string> digits = without_separators(text);
  if (!digits || digits->empty()) return std::nullopt;
  if (*digits == ".inf" || *digits == "inf") return INFINITY;
  if (*digits == "-.inf" || *digits == "-inf") return -INFINITY;
  double value = 0;
  const auto [end, error] = std::from_chars(digits->data(), digits->data() + digits->size(), value);
  if (error != std::errc() || end != digits->data() + digits->size() || std::isnan(value))
    return std::nullopt;
  return value;
}

std::optional<double> parse_quantity(std::string_view text, Unit unit) {
  while (text.ends_with(' ')) text.remove_suffix(1);
  while (text.starts_with(' ')) text.remove_prefix(1);
  for (const Scale& scale : scales(unit)) {
    if (!text.ends_with(scale.name)) continue;
    std::string_view number = text.substr(0, text.size() - std::string_view(scale.name).size());
    while (number.ends_with(' ')) number.remove_suffix(1);
    // Another unit's tail (the B of GB, the s of ms): the number does not end in a digit.
    if (number.empty() || (std::isdigit(number.back()) == 0 && number.back() != '.')) continue;
    const std::optional<double> value = parse_number(number);
    if (!value) return std::nullopt;
    // A decimal unit moves the point in the text: 3 us is the double nearest to 3e-6, which
    // 3 * 1e-6 is not always.
    if (scale.power != kNotDecimal && number.find_first_of("eE") == std::string_view::npos)
      return parse_number(std::string(number) + "e" + std::to_string(scale.power));
    return *value * scale.factor;
  }
  if (const std::optional<double> bare = parse_number(text); bare && *bare == 0) return 0.0;
  return std::nullopt;
}

std::string print_quantity(double value, Unit unit) {
  if (value == 0 || !std::isfinite(value)) return print_number(value) + " " + base_name(unit);
  std::string best = print_number(value) + " " + base_name(unit);
  auto awkward = [](double number) { return std::abs(number) < 1 || std::abs(number) >= 1000; };
  bool best_awkward = awkward(value);
  size_t best_length = print_number(value).size();
  for (const Scale& scale : scales(unit)) {
    const double number = value / scale.factor;
    const std::string digits = print_number(number), text = digits + " " + scale.name;
    if (parse_quantity(text, unit) != value) continue;  // would not read back to the same value
    if (digits.size() > best_length) continue;          // a shorter number is at hand
    if (digits.size() == best_length && awkward(number) >= best_awkward) continue;
    best = text, best_length = digits.size(), best_awkward = awkward(number);
  }
  return best;
}

std::string rounded_quantity(double value, Unit unit) {
  const Scale* best = nullptr;
  for (const Scale& scale : scales(unit)) {
    // One family of prefixes: binary for sizes, decimal for rates; hours and minutes for times.
    const bool binary = std::string_view(scale.name).find("iB") != std::string_view::npos;
    const bool decimal_size = unit == Unit::kBytes && !binary && scale.factor != 1;
    if (decimal_size || (unit == Unit::kBytesPerSecond && binary)) continue;
    best = &scale;
    if (std::abs(value) >= scale.factor * 0.9995) break;
  }
  if (value == 0) return std::string("0 ") + base_name(unit);
  return three_digits(value / best->factor) + " " + best->name;
}

std::string expected_quantity(Unit unit) {
  switch (unit) {
    case Unit::kBytes:
      return "a size with its unit, such as 25 MiB";
    case Unit::kSeconds:
      return "a time with its unit, such as 3 us";
    case Unit::kBytesPerSecond:
      return "a rate with its unit, such as 370 GB/s";
    case Unit::kFlopPerSecond:
      return "a rate with its unit, such as 660 TFLOP/s";
  }
  return "";
}

std::string print_integer(int64_t value) { return with_separators(std::to_string(value)); }
std::string print_unsigned(uint64_t value) { return with_separators(std::to_string(value)); }

std::string print_number(double value) {
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return print_integer(static_cast<int64_t>(value));
  char text[64];
  const auto result = std::to_chars(text, text + sizeof text, value);
  std::string out(text, result.ptr);
  const size_t e = out.find('e');
  if (e == std::string::npos) return out;
  std::string mantissa = out.substr(0, e);
  if (mantissa.find('.') == std::string::npos) mantissa += ".0";
  const int exponent = std::atoi(out.c_str() + e + 1);
  return mantissa + (exponent < 0 ? "e-" : "e+") + std::to_string(std::abs(exponent));
}

std::string rounded_count(double value) {
  const std::pair<double, const char*> steps[] = {
      {1e15, " P"}, {1e12, " T"}, {1e9, " G"}, {1e6, " M"}, {1e3, " k"}};
  for (const auto& [factor, name] : steps)
    if (std::abs(value) >= factor * 0.9995 && std::abs(value) >= 9999.5)
      return three_digits(value / factor) + name;
  return value == std::floor(value) ? std::to_string(static_cast<int64_t>(value))
                                    : three_digits(value);
}

}  // namespace tautline
