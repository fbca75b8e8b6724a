// One Timeline from those of several ranks, on one clock.
//
// Ranks of one host share its clock, and their origins say exactly how their times lie. The clocks of
// two hosts have nothing in common; but a collective ends on all its ranks at the same moment, so the
// median difference between the ends of those that two hosts share is the clocks' difference, as far
// as completion itself does not differ.
#pragma once

#include <string>
#include <vector>

#include "tautline/timeline/timeline.h"

namespace tautline {

struct TimelinePart {
  Timeline timeline;
  double shift = 0;   // seconds, to be added to its times
  std::string clock;  // parts of one name share a clock
};

/// Brings the parts to the first one's clock: those of another clock get one further shift, found by
/// the collectives that they share with parts which have theirs. The parts of a clock that shares
/// none keep their shifts.
void align_by_collectives(std::vector<TimelinePart>& parts);

/// In order of start; each part's times are moved by its shift. The clock spread is measured.
Timeline merge(std::vector<TimelinePart> parts);

/// How far the ranks' clocks disagree: for each rank the median difference between the ends of its
/// collectives and their mean ends is its clock's error (and what completion really differs). The
/// spread is the largest less the smallest; 0 without collectives.
double clock_spread(const Timeline& timeline);

}  // namespace tautline
