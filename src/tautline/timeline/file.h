// The Timeline in a file of our own: one JSON object a line, so that a run that is killed leaves
// every whole line readable, and a line can be read by anything.
//
//   {"timeline":1,"plan":"5f3c9a1e","world":4,"clock_spread":4.1e-05}
//   {"step":12,"rank":2,"stream":"comm","kind":"all_to_all","name":"item.ids","arrival":1.201377,
//    "start":1.202951,"end":1.204077,"bytes":6396313,"group":"shard","tier":"node","sequence":412}
//
// Seconds, bytes and FLOP at full precision. Absent keys have the event's default.
#pragma once

#include <string>
#include <vector>

#include "tautline/timeline/timeline.h"

namespace tautline {

/// Errors: a file that cannot be written.
void write_timeline(const Timeline& timeline, const std::string& path);

/// Errors: a file that cannot be read or is no Timeline, with the line. A last line without its end
/// (a killed run) is left out.
Timeline read_timeline(const std::string& path);

}  // namespace tautline
