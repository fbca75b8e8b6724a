// Which columns a log has, and which of them are the user, the item and the time.
#pragma once

#include <string>
#include <vector>

#include "tautline/data/build/events.h"

namespace tautline::data {

/// Where a header is one name that has in it what stands between names elsewhere: a question after
/// --delimiter. Otherwise empty.
std::string another_delimiter(const std::vector<std::string>& names);

/// The names in the file's header (delimited) or schema (Parquet).
std::vector<std::string> column_names(const Location& file, char delimiter);

/// Where `columns` names no user, item or time: the header's usual name for it ("userId",
/// "user_id:token", "movieId", "timestamp", ...). Errors: none there, or no header to look at.
void choose_usual_columns(LogColumns& columns, const Location& file);

}  // namespace tautline::data
