// Which columns a log has, and which of them are the user, the item and the time.
#pragma once

#include <string>
#include <vector>

#include "tautline/data/build/events.h"

namespace tautline::data {

/// Where a header is one name that has in it what stands between names elsewhere: a question after
/// --delimiter. Otherwise empty.
std::string another_delimiter(const std::vector<std::string>& names);

/// The names in the file's header (delimited; none in an empty file) or schema (Parquet).
std::vector<std::string> column_names(const Location& file, char delimiter);

/// Where `columns` names no user, item or time: the usual name for it ("userId", "user_id:token",
/// "movieId", "timestamp", ...) in the header of the first of the log's files that is not empty.
/// Errors: none there, or no header to look at.
void choose_usual_columns(LogColumns& columns, const Location& log,
                          const std::vector<Location>& files);

}  // namespace tautline::data
