#include "tautline/data/build/times.h"

#include "tautline/base/units.h"

namespace tautline::data {

std::string time_warning(const TimeFacts& times) {
  constexpr int64_t kYear1971 = 31'536'000, kYear3000 = 32'503'680'000;  // seconds
  constexpr int64_t kFew = 1'000;  // events that may well be of one moment
  const std::string column = " times in the column '" + times.column + "' ";
  const std::string ask =
      "; are they the events' times? --time names another column, --time-unit another unit";
  if (times.last < kYear1971)
    return "all" + column + "lie before 1971, " + print_integer(times.first) + " to " +
           print_integer(times.last) + " s since 1970" + ask;
  if (times.last >= kYear3000)
    return "the" + column + "reach beyond the year 3000, " + print_integer(times.last) +
           " s since 1970" + ask;
  if (times.events <= kFew) return "";
  if (times.first == times.last) return "all" + column + "lie in the same second" + ask;
  if (2 * times.most_equal > times.events)
    return print_integer(times.most_equal) + " of " + print_integer(times.events) + column +
           "are the same, and those events keep the file's order" + ask;
  return "";
}

}  // namespace tautline::data
