// From one field to one value, with errors that say which value in which place is wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tautline/data/build/build.h"

namespace tautline::data {

/// "ratings.csv, line 17": asked for only when something is wrong.
using Place = std::function<std::string()>;

/// "964982703" or "964982703.25" in the unit, to ticks. Errors: text, no number, out of range.
int64_t parse_ticks(std::string_view text, TimeUnit unit, const std::string& column,
                    const Place& where);
int64_t ticks_from_integer(int64_t value, TimeUnit unit, const std::string& column,
                           const Place& where);
int64_t ticks_from_number(double value, TimeUnit unit, const std::string& column,
                          const Place& where);

/// A dense column or label. Errors: empty, text, NaN.
float parse_dense(std::string_view text, const std::string& column, const Place& where);
float checked_dense(float value, const std::string& column, const Place& where);

/// A user or item: not empty, valid UTF-8. A categorical column: valid UTF-8, may be empty.
void check_token(std::string_view token, bool may_be_empty, const std::string& column,
                 const Place& where);

}  // namespace tautline::data
