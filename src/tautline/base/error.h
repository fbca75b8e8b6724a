// The two kinds of error (docs/errors.md).
//
// The user's: something they wrote, passed or own is wrong. One sentence that says what is wrong,
// where (file, line, column, row group, table name) and what would be right or the nearest valid
// name. The program prints it without a stack trace and exits with 2.
//
// Ours: an invariant that this code promised does not hold. The message carries both values and the
// rank; the program aborts (134), because going on would spoil the user's model.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tautline {

/// The user's error: `throw UserError("...")`. cli/ prints it and exits with kExitUser.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A peer or a device failed; what was saved is good and `--resume` may go on (exit status 3).
class RankFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline constexpr int kExitDone = 0, kExitUser = 2, kExitRankFailed = 3;

/// `throw user_error("column '", name, "' is missing from ", path)`.
template <class... Parts>
[[nodiscard]] UserError user_error(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return UserError(out.str());
}

/// Names the rank in the message of a broken invariant. Set once by comm/ when the rank is known.
void set_rank_for_errors(int rank);

/// Prints "tautline: broken invariant [rank R] file:line: condition: details" to stderr and aborts.
[[noreturn]] void broken_invariant(const char* file, int line, const char* condition,
                                   const std::string& details);

}  // namespace tautline

/// TAUTLINE_INVARIANT(a == b, "a " << a << ", b " << b): ours to keep; aborts with both values.
#define TAUTLINE_INVARIANT(condition, details)                                          \
  do {                                                                                  \
    if (!(condition)) [[unlikely]] {                                                    \
      std::ostringstream tautline_out;                                                  \
      tautline_out << details;                                                          \
      ::tautline::broken_invariant(__FILE__, __LINE__, #condition, tautline_out.str()); \
    }                                                                                   \
  } while (false)
