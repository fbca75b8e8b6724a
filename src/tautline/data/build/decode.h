// From one field to one value, with errors that say which value in which place is wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tautline/data/build/build.h"

namespace tautline::data {

/// "ratings.csv, line 17": asked for only when something is wrong.
using Place = std::function<std::string()>;

/// "964982703" or "964982703.25" in the unit, to ticks. Errors: text, no number, out of range.
int64_t parse_ticks(std::string_view text, TimeUnit unit, const std::string& column,
                    const Place& where);
int64_t ticks_from_integer(int64_t value, TimeUnit unit, const std::string& column,
                           const Place& where);
int64_t ticks_from_unsigned(uint64_t value, TimeUnit unit, const std::string& column,
                            const Place& where);
int64_t ticks_from_number(double value, TimeUnit unit, const std::string& column,
                          const Place& where);

/// A dense column or label; what is nearer to 0 than a float can be is 0. Errors: empty, text, NaN,
/// finite and beyond a float.
float parse_dense(std::string_view text, const std::string& column, const Place& where);
float checked_dense(double value, const std::string& column, const Place& where);
/// Of a label's column, after it was read: every value is 0 or 1. Errors: the first that is not.
void check_labels(const std::vector<float>& values, const std::string& column,
                  const std::function<std::string(int64_t row)>& where);

bool is_utf8(std::string_view text);

/// A user or item: not empty, valid UTF-8. A categorical column: valid UTF-8, may be empty.
void check_token(std::string_view token, bool may_be_empty, const std::string& column,
                 const Place& where);

}  // namespace tautline::data
