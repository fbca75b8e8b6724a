// From Arrow's Status to our errors. A file that cannot be read, written or decoded is the user's
// to mend, so the sentence begins with what we were doing and to which file, and ends with Arrow's
// first line.
#pragma once

#include <string>
#include <utility>

#include <arrow/result.h>
#include <arrow/status.h>

#include "tautline/base/error.h"

namespace tautline::data {

/// "Invalid: bad magic" without the lines of context that Arrow appends.
inline std::string first_line(const arrow::Status& status) {
  const std::string text = status.ToString();
  return text.substr(0, text.find('\n'));
}

/// check(file->Close(), "cannot close ", path): throws UserError("cannot close PATH: IOError ...").
template <class... Parts>
void check(const arrow::Status& status, const Parts&... parts) {
  if (!status.ok()) throw user_error(parts..., ": ", first_line(status));
}

/// auto file = unwrap(fs->OpenInputFile(path), "cannot open ", path);
template <class T, class... Parts>
T unwrap(arrow::Result<T> result, const Parts&... parts) {
  check(result.status(), parts...);
  return std::move(result).ValueUnsafe();
}

}  // namespace tautline::data
