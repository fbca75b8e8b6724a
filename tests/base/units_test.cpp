#include "tautline/base/units.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tautline/base/random.h"

namespace tautline {
namespace {

TEST(Units, ReadsWhatPeopleWrite) {
  EXPECT_EQ(parse_quantity("25 MiB", Unit::kBytes), 25.0 * 1024 * 1024);
  EXPECT_EQ(parse_quantity("80GB", Unit::kBytes), 80e9);
  EXPECT_EQ(parse_quantity("  512 B ", Unit::kBytes), 512.0);
  EXPECT_EQ(parse_quantity("2.6 TB/s", Unit::kBytesPerSecond), 2.6e12);
  EXPECT_EQ(parse_quantity("3 us", Unit::kSeconds), 3e-6);  // the nearest double, not 3 * 1e-6
  EXPECT_EQ(parse_quantity("1.5 min", Unit::kSeconds), 90.0);
  EXPECT_EQ(parse_quantity("660 TFLOP/s", Unit::kFlopPerSecond), 660e12);
  EXPECT_EQ(parse_quantity("1_000 kB", Unit::kBytes), 1e6);
  EXPECT_EQ(parse_quantity("1e3 MB", Unit::kBytes), 1e9);
  EXPECT_EQ(parse_quantity("0", Unit::kBytes), 0.0);  // nothing needs no unit
}

TEST(Units, RefusesNumbersWithoutTheirUnit) {
  for (const char* text :
       {"25", "25 MB/s", "25 s", "MiB", "", "x MiB", "25 mib", "1 2 MiB", "nan B"})
    EXPECT_FALSE(parse_quantity(text, Unit::kBytes)) << text;
  EXPECT_FALSE(parse_quantity("25 MiB", Unit::kSeconds));
}

TEST(Units, WritesTheShortestText) {
  EXPECT_EQ(print_quantity(25.0 * 1024 * 1024, Unit::kBytes), "25 MiB");
  EXPECT_EQ(print_quantity(80e9, Unit::kBytes), "80 GB");
  EXPECT_EQ(print_quantity(2.6e12, Unit::kBytesPerSecond), "2.6 TB/s");
  EXPECT_EQ(print_quantity(370e9, Unit::kBytesPerSecond), "370 GB/s");
  EXPECT_EQ(print_quantity(3e-6, Unit::kSeconds), "3 us");
  EXPECT_EQ(print_quantity(72e-6, Unit::kSeconds), "72 us");
  EXPECT_EQ(print_quantity(0, Unit::kBytes), "0 B");
  EXPECT_EQ(print_quantity(1, Unit::kBytes), "1 B");
}

TEST(Units, EveryQuantityReadsBackToItself) {
  Random random(1, RandomUse::kSynthetic);
  for (const Unit unit :
       {Unit::kBytes, Unit::kSeconds, Unit::kBytesPerSecond, Unit::kFlopPerSecond}) {
    for (int i = 0; i < 2000; ++i) {
      const double magnitude = std::pow(10, random.uniform() * 30 - 12);
      const double value = i % 2 ? magnitude : std::round(magnitude * 100) / 100;
      const std::string text = print_quantity(value, unit);
      ASSERT_EQ(parse_quantity(text, unit), value) << text;
    }
  }
}

TEST(Units, IntegersMayHaveSeparators) {
  EXPECT_EQ(parse_integer("20_000_000"), 20'000'000);
  EXPECT_EQ(parse_integer("-5"), -5);
  EXPECT_EQ(parse_integer("9223372036854775807"), INT64_MAX);
  EXPECT_FALSE(parse_integer("9223372036854775808"));  // no silent wrap
  for (const char* text : {"", "_1", "1_", "1__0", "1.0", "0x10", "ten", "1 "})
    EXPECT_FALSE(parse_integer(text)) << text;
  EXPECT_EQ(print_integer(20'000'000), "20_000_000");
  EXPECT_EQ(print_integer(-123456), "-123_456");
  EXPECT_EQ(print_integer(2048), "2048");
  EXPECT_EQ(parse_unsigned("18446744073709551615"), UINT64_MAX);
  EXPECT_FALSE(parse_unsigned("-1"));
}

TEST(Units, NumbersReadBackToTheSameBits) {
  Random random(2, RandomUse::kSynthetic);
  for (int i = 0; i < 5000; ++i) {
    const double value = (random.uniform() - 0.5) * std::pow(10, random.uniform() * 600 - 300);
    ASSERT_EQ(parse_number(print_number(value)), value) << print_number(value);
  }
  EXPECT_EQ(print_number(1e-8), "1.0e-8");  // with a point: YAML 1.1 takes 1e-8 for a word
  EXPECT_EQ(parse_number("1e-3"), 1e-3);
  EXPECT_EQ(print_number(0.02), "0.02");
}

TEST(Units, RoundedTextsAreForPeople) {
  EXPECT_EQ(rounded_quantity(5.12e9, Unit::kBytes), "4.77 GiB");
  EXPECT_EQ(rounded_quantity(1.2345e-3, Unit::kSeconds), "1.23 ms");
  EXPECT_EQ(rounded_quantity(0, Unit::kSeconds), "0 s");
  EXPECT_EQ(rounded_count(1234567), "1.23 M");
  EXPECT_EQ(rounded_count(512), "512");
}

}  // namespace
}  // namespace tautline
