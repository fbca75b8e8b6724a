#include "tautline/data/build/decode.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>

#include <arrow/util/utf8.h>

#include "tautline/base/error.h"
#include "tautline/base/excerpt.h"
#include "tautline/data/build/events.h"

namespace tautline::data {
namespace {

int64_t units_per_second(TimeUnit unit) {
  switch (unit) {
    case TimeUnit::kSeconds:
      return 1;
    case TimeUnit::kMilliseconds:
      return 1'000;
    case TimeUnit::kMicroseconds:
      return 1'000'000;
    case TimeUnit::kNanoseconds:
      return 1'000'000'000;
  }
  return 1;
}

const char* unit_name(TimeUnit unit) {
  constexpr const char* kNames[] = {"s", "ms", "us", "ns"};
  return kNames[static_cast<int>(unit)];
}

// Beyond the year 5000 lies no event, but milliseconds that are called seconds lie there.
constexpr int64_t kLatestSecond = 95'617'584'000;

template <class... Parts>
[[noreturn]] void fail(const Place& where, const std::string& column, const Parts&... parts) {
  throw user_error(where(), ", column '", excerpt(column), "'", parts...);
}

template <class T>
std::string shortest(T value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

[[noreturn]] void out_of_range(const std::string& value, TimeUnit unit, const std::string& column,
                               const Place& where) {
  fail(where, column, ": the time ", value, " ", unit_name(unit),
       " is centuries from now; --time-unit s, ms, us or ns says what one unit of this "
       "column is");
}

[[noreturn]] void is_nan(const std::string& column, const Place& where) {
  fail(where, column, ": the value is NaN; fill it, or leave the column out");
}

[[noreturn]] void too_large(const std::string& value, const std::string& column,
                            const Place& where) {
  fail(where, column, ": ", value, " is beyond what 32 bits keep, ",
       shortest(std::numeric_limits<float>::max()));
}

bool is_ascii(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080u) return false;
  }
  for (; i < text.size(); ++i)
    if (text[i] & 0x80) return false;
  return true;
}

std::string_view without_spaces(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

/// The whole text as a number: what is nearer to 0 than T can hold is 0, what is beyond T infinite.
template <class T>
bool parse_whole(std::string_view text, T& value) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size()) return false;
  if constexpr (std::is_floating_point_v<T>) {
    if (error == std::errc::result_out_of_range) {
      const std::string digits(text);
      if constexpr (std::is_same_v<T, float>)
        value = std::strtof(digits.c_str(), nullptr);
      else
        value = std::strtod(digits.c_str(), nullptr);
      return true;
    }
  }
  return error == std::errc();
}

}  // namespace

int64_t ticks_per_second(TimeUnit unit) {
  return unit == TimeUnit::kNanoseconds ? 1'000'000'000 : 1'000'000;
}

TimeUnit time_unit_from(const std::string& text) {
  for (TimeUnit unit : {TimeUnit::kSeconds, TimeUnit::kMilliseconds, TimeUnit::kMicroseconds,
                        TimeUnit::kNanoseconds})
    if (text == unit_name(unit)) return unit;
  throw user_error("--time-unit '", text, "' is none of s, ms, us, ns");
}

int64_t ticks_from_integer(int64_t value, TimeUnit unit, const std::string& column,
                           const Place& where) {
  const int64_t units = units_per_second(unit);
  int64_t ticks = 0;
  if (value / units > kLatestSecond || value / units < -kLatestSecond ||
      __builtin_mul_overflow(value, ticks_per_second(unit) / units, &ticks))
    out_of_range(std::to_string(value), unit, column, where);
  return ticks;
}

int64_t ticks_from_unsigned(uint64_t value, TimeUnit unit, const std::string& column,
                            const Place& where) {
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    out_of_range(std::to_string(value), unit, column, where);
  return ticks_from_integer(static_cast<int64_t>(value), unit, column, where);
}

int64_t ticks_from_number(double value, TimeUnit unit, const std::string& column,
                          const Place& where) {
  const double scale =
      static_cast<double>(ticks_per_second(unit)) / static_cast<double>(units_per_second(unit));
  const double seconds = value / static_cast<double>(units_per_second(unit));
  if (std::isnan(value)) fail(where, column, ": the time is NaN");
  if (!(std::abs(seconds) < static_cast<double>(kLatestSecond)) || std::abs(value * scale) > 9e18)
    out_of_range(shortest(value), unit, column, where);
  return std::llround(value * scale);
}

int64_t parse_ticks(std::string_view text, TimeUnit unit, const std::string& column,
                    const Place& where) {
  text = without_spaces(text);
  int64_t integer = 0;
  if (parse_whole(text, integer)) return ticks_from_integer(integer, unit, column, where);
  double number = 0;
  if (parse_whole(text, number)) {
    if (std::isinf(number)) out_of_range(excerpt(text), unit, column, where);
    return ticks_from_number(number, unit, column, where);
  }
  if (text.empty()) fail(where, column, ": the time is empty");
  fail(where, column, ": '", excerpt(text),
       "' is a timestamp as text; times must be numbers since 1970 (seconds, or what --time-unit "
       "says)");
}

float checked_dense(double value, const std::string& column, const Place& where) {
  if (std::isnan(value)) is_nan(column, where);
  const auto kept = static_cast<float>(value);
  if (std::isinf(kept) && !std::isinf(value)) too_large(shortest(value), column, where);
  return kept;
}

float parse_dense(std::string_view text, const std::string& column, const Place& where) {
  text = without_spaces(text);
  float value = 0;
  if (parse_whole(text, value)) {
    if (std::isnan(value)) is_nan(column, where);
    if (std::isinf(value) && text.find_first_of("0123456789") != text.npos)  // not "inf"
      too_large(excerpt(text), column, where);
    return value;
  }
  if (text.empty()) fail(where, column, ": the value is empty; fill it, or leave the column out");
  fail(where, column, ": '", excerpt(text), "' is not a number");
}

void check_labels(const std::vector<float>& values, const std::string& column,
                  const std::function<std::string(int64_t row)>& where) {
  for (size_t row = 0; row < values.size(); ++row)
    if (values[row] != 0 && values[row] != 1) [[unlikely]]
      fail([&] { return where(static_cast<int64_t>(row)); }, column, ": the label ",
           shortest(values[row]), " is neither 0 nor 1; --dense keeps other numbers");
}

bool is_utf8(std::string_view text) {
  if (is_ascii(text)) return true;
  static std::once_flag once;  // without its tables Arrow finds all text valid
  std::call_once(once, arrow::util::InitializeUTF8);
  return arrow::util::ValidateUTF8(text);
}

void check_token(std::string_view token, bool may_be_empty, const std::string& column,
                 const Place& where) {
  if (token.empty() && !may_be_empty) fail(where, column, " is empty");
  if (!is_utf8(token)) fail(where, column, ": '", excerpt(token), "' is not UTF-8");
}

}  // namespace tautline::data
