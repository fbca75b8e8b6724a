// From Arrow's Status to our errors. A file that cannot be read, written or decoded is the user's
// to mend, so the sentence begins with what we were doing and to which file, and ends with Arrow's
// first line.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <arrow/result.h>
#include <arrow/status.h>
#include <arrow/util/io_util.h>

#include "tautline/base/error.h"
#include "tautline/base/excerpt.h"

namespace tautline::data {

/// "bad magic": without the kind in front ("Invalid: ") and the lines of context that Arrow appends.
inline std::string first_line(const arrow::Status& status) {
  std::string text = status.ToString();
  const std::string kind = status.CodeAsString() + ": ";
  if (text.starts_with(kind)) text.erase(0, kind.size());
  text.resize(std::min(text.size(), text.find('\n')));
  constexpr size_t kMost = 1024;  // it may hold a path
  const int reason = arrow::internal::ErrnoFromStatus(status);
  return reason != 0 && text.size() > kMost ? std::strerror(reason) : excerpt(text, kMost);
}

/// check(file->Close(), "cannot close ", path): throws UserError("cannot close PATH: ...").
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
