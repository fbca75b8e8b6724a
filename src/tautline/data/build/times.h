// Is the time column a time? A column of ids or ratings sorts events just as well, and the log that
// it makes is worth nothing; so what no real log looks like is told, and built all the same.
#pragma once

#include <cstdint>
#include <string>

namespace tautline::data {

/// The value that more than half of the values are, if there is one (Boyer and Moore's vote, 1981):
/// one pass, one counter. What it names must be counted in a second pass.
class MajorityVote {
 public:
  void add(int64_t value) {
    if (votes_ == 0) candidate_ = value;
    votes_ += value == candidate_ ? 1 : -1;
  }
  int64_t candidate() const { return candidate_; }

 private:
  int64_t candidate_ = 0, votes_ = 0;
};

struct TimeFacts {
  std::string column;
  int64_t first = 0, last = 0;  // whole seconds since 1970
  int64_t events = 0;
  int64_t most_equal = 0;  // events at the time that more than half of them have, if there is one
};

/// One sentence, or empty: the times all lie before 1971, or reach the year 3000, or, in a log of
/// more than 1,000 events, all lie in one second or are for more than half the same.
std::string time_warning(const TimeFacts& times);

}  // namespace tautline::data
