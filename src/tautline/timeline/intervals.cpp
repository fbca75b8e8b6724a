#include "tautline/timeline/intervals.h"

#include <algorithm>

namespace tautline {

std::vector<Interval> united(std::vector<Interval> intervals) {
  std::erase_if(intervals, [](const Interval& i) { return !(i.start < i.end); });
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.start < b.start; });
  std::vector<Interval> out;
  for (const Interval& i : intervals) {
    if (!out.empty() && i.start <= out.back().end)
      out.back().end = std::max(out.back().end, i.end);
    else
      out.push_back(i);
  }
  return out;
}

std::vector<Interval> without(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::vector<Interval> out;
  auto next = b.begin();
  for (Interval i : a) {
    while (next != b.end() && next->end <= i.start) ++next;
    for (auto hole = next; hole != b.end() && hole->start < i.end; ++hole) {
      if (i.start < hole->start) out.push_back({i.start, hole->start});
      i.start = std::max(i.start, hole->end);
    }
    if (i.start < i.end) out.push_back(i);
  }
  return out;
}

std::vector<Interval> common(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  return without(a, without(a, b));
}

double length(const std::vector<Interval>& united) {
  double seconds = 0;
  for (const Interval& i : united) seconds += i.end - i.start;
  return seconds;
}

}  // namespace tautline
