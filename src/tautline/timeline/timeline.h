// The noun Timeline: what happened, in a real run or a simulated one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tautline {

struct TimelineEvent {
  int64_t step = 0;
  int rank = 0;
  std::string stream;  // compute, comm, input, host; evaluation, checkpoint: beside the steps
  // step (whole), input, lookup, all_to_all, forward, backward, optimizer, ...; on the stream compute,
  // wait: it stands still for a collective; idle
  std::string kind;
  std::string name;  // embedding_forward, layer.3.attention, bucket.2
  double arrival =
      -1;  // seconds; when this rank was ready for a collective, -1 where it has no meaning
  double start = 0, end = 0;  // seconds since the Timeline's origin
  double bytes = 0;           // moved by this rank
  double flop = 0;
  std::string group;  // process group; empty: none
  std::string tier;
  int64_t sequence = -1;  // of the collective in its group
  bool operator==(const TimelineEvent&) const = default;
};

struct TimelineHeader {
  std::string plan_digest;
  int world = 1;
  double clock_spread_seconds = 0;  // how far the ranks' clocks disagree after alignment
  bool operator==(const TimelineHeader&) const = default;
};

struct Timeline {
  TimelineHeader header;
  std::vector<TimelineEvent> events;
  bool operator==(const Timeline&) const = default;
};

}  // namespace tautline
