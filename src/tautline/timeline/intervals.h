// Sets of time as sorted, disjoint intervals: what a stream was busy with, and what of it another
// stream hid.
#pragma once

#include <vector>

namespace tautline {

struct Interval {
  double start = 0, end = 0;
  bool operator==(const Interval&) const = default;
};

/// Sorted and disjoint; touching ones joined, empty ones gone. In any order before.
std::vector<Interval> united(std::vector<Interval> intervals);

/// What of `a` is not in `b`; both united.
std::vector<Interval> without(const std::vector<Interval>& a, const std::vector<Interval>& b);

/// What of `a` is in `b` too; both united.
std::vector<Interval> common(const std::vector<Interval>& a, const std::vector<Interval>& b);

double length(const std::vector<Interval>& united);

}  // namespace tautline
