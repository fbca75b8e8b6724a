// Quantities as people write them: "25 MiB", "2.6 TB/s", "3 us", "660 TFLOP/s", and 20_000_000.
//
// Inside the program a quantity is a double in SI units (bytes, seconds, bytes/s, FLOP/s). What is
// written is read back to the very same double.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tautline {

enum class Unit { kBytes, kSeconds, kBytesPerSecond, kFlopPerSecond };

/// Reads "25 MiB" as 26214400. Null when the text is no number with a unit of that kind; a bare 0
/// is the only number that needs no unit.
std::optional<double> parse_quantity(std::string_view text, Unit unit);

/// The shortest text that parse_quantity reads back to the same value: "25 MiB", "3 us".
std::string print_quantity(double value, Unit unit);

/// For people, rounded to three digits: 26214400 as "25 MiB", 1.2345e-3 s as "1.23 ms".
std::string rounded_quantity(double value, Unit unit);

/// "a size such as 25 MiB": what an error says was expected.
std::string expected_quantity(Unit unit);

/// Numbers with optional '_' between digits.
std::optional<int64_t> parse_integer(std::string_view text);
std::optional<uint64_t> parse_unsigned(std::string_view text);
std::optional<double> parse_number(std::string_view text);

/// 20_000_000 (separators from five digits on).
std::string print_integer(int64_t value);
std::string print_unsigned(uint64_t value);

/// Shortest text that reads back to the same double; exponents as 1.0e-8, which YAML 1.1 readers
/// take for a number too.
std::string print_number(double value);

/// Three significant digits with k, M, G: 1234567 as "1.23 M".
std::string rounded_count(double value);

}  // namespace tautline
