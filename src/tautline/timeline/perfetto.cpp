#include "tautline/timeline/perfetto.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tautline/base/new_file.h"

namespace tautline {
namespace {

using Json = nlohmann::ordered_json;

// A track of the format holds nested slices only: what overlaps without nesting (collectives in
// flight together) goes to a further lane of the same stream.
class Lanes {
 public:
  size_t place(double start, double end) {
    for (size_t lane = 0; lane < open_.size(); ++lane)
      if (fits(open_[lane], start, end)) return lane;
    open_.push_back({end});
    return open_.size() - 1;
  }

 private:
  static bool fits(std::vector<double>& ends, double start, double end) {
    while (!ends.empty() && ends.back() <= start) ends.pop_back();
    if (!ends.empty() && ends.back() < end) return false;
    ends.push_back(end);
    return true;
  }
  std::vector<std::vector<double>> open_;
};

// Streams in the order in which a reader follows a step; others behind, as they come.
constexpr std::array<const char*, 6> kStreams = {"host", "input",      "compute",
                                                 "comm", "evaluation", "checkpoint"};
constexpr size_t kLanesOfStream = 64;

class Tracks {
 public:
  /// Thread number of an event; events come in order of start, longer ones first.
  size_t of(const TimelineEvent& event) {
    const size_t lane = lanes_[{event.rank, event.stream}].place(event.start, event.end);
    const size_t number =
        stream_number(event.stream) * kLanesOfStream + std::min(lane, kLanesOfStream - 1) + 1;
    names_[{event.rank, number}] =
        event.stream + (lane > 0 ? " " + std::to_string(lane + 1) : std::string());
    return number;
  }
  const auto& names() const { return names_; }

 private:
  size_t stream_number(const std::string& stream) {
    const auto known = std::find(kStreams.begin(), kStreams.end(), stream);
    if (known != kStreams.end()) return static_cast<size_t>(known - kStreams.begin());
    return others_.try_emplace(stream, kStreams.size() + others_.size()).first->second;
  }
  std::map<std::pair<int, std::string>, Lanes> lanes_;
  std::map<std::string, size_t> others_;
  std::map<std::pair<int, size_t>, std::string> names_;
};

struct Placed {
  const TimelineEvent* event;
  size_t thread;
};

double microseconds(double seconds) { return seconds * 1e6; }

Json slice(const Placed& placed) {
  const TimelineEvent& e = *placed.event;
  Json arguments = {{"step", e.step}, {"kind", e.kind}};
  if (e.arrival != -1) arguments["waited_us"] = microseconds(std::max(0.0, e.start - e.arrival));
  if (e.bytes != 0) arguments["bytes"] = e.bytes;
  if (e.flop != 0) arguments["flop"] = e.flop;
  if (!e.group.empty()) arguments["group"] = e.group;
  if (!e.tier.empty()) arguments["tier"] = e.tier;
  if (e.sequence != -1) arguments["sequence"] = e.sequence;
  return {{"ph", "X"},
          {"name", e.name.empty() ? e.kind : e.name},
          {"cat", e.kind},
          {"pid", e.rank},
          {"tid", placed.thread},
          {"ts", microseconds(e.start)},
          {"dur", microseconds(std::max(0.0, e.end - e.start))},
          {"args", std::move(arguments)}};
}

Json name_of(const char* what, int rank, size_t thread, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name}}}};
}

// From the rank that arrived last to each of the others. An arrow is tied to the slice in which its
// end lies, so both ends are put into the middles.
void add_arrows(const std::vector<Placed>& ranks, int64_t& id,
                const std::function<void(const Json&)>& put) {
  if (ranks.size() < 2) return;
  const auto arrival = [](const Placed& p) {
    return p.event->arrival == -1 ? p.event->start : p.event->arrival;
  };
  const auto last =
      std::max_element(ranks.begin(), ranks.end(),
                       [&](const Placed& a, const Placed& b) { return arrival(a) < arrival(b); });
  const auto end_of_arrow = [&](const char* phase, const Placed& p) {
    Json out = {{"ph", phase},
                {"name", p.event->kind},
                {"cat", "collective"},
                {"id", id},
                {"pid", p.event->rank},
                {"tid", p.thread},
                {"ts", microseconds((p.event->start + p.event->end) / 2)}};
    if (*phase == 'f') out["bp"] = "e";
    return out;
  };
  for (auto to = ranks.begin(); to != ranks.end(); ++to) {
    if (to == last) continue;
    ++id;
    put(end_of_arrow("s", *last));
    put(end_of_arrow("f", *to));
  }
}

std::vector<Placed> place_all(const Timeline& timeline, Tracks& tracks) {
  std::vector<Placed> placed;
  for (const TimelineEvent& event : timeline.events) placed.push_back({&event, 0});
  std::stable_sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.event->start, -a.event->end) < std::pair(b.event->start, -b.event->end);
  });
  for (Placed& p : placed) p.thread = tracks.of(*p.event);
  return placed;
}

}  // namespace

void write_perfetto(const Timeline& timeline, const std::string& path) {
  Tracks tracks;
  const std::vector<Placed> placed = place_all(timeline, tracks);
  NewFile file(path);
  std::ostream& out = file.out();
  out << "{\"displayTimeUnit\":\"ms\",\"otherData\":"
      << Json{{"plan", timeline.header.plan_digest}}.dump() << ",\"traceEvents\":[";
  bool first = true;
  const auto put = [&](const Json& json) {
    out << (first ? "\n" : ",\n") << json.dump(-1, ' ', false, Json::error_handler_t::replace);
    first = false;
  };
  int rank = -1;
  for (const auto& [key, name] : tracks.names()) {
    if (key.first != rank) {
      rank = key.first;
      put(name_of("process_name", rank, 0, "rank " + std::to_string(rank)));
      put({{"ph", "M"},
           {"name", "process_sort_index"},
           {"pid", rank},
           {"tid", 0},
           {"args", {{"sort_index", rank}}}});
    }
    put(name_of("thread_name", rank, key.second, name));
    put({{"ph", "M"},
         {"name", "thread_sort_index"},
         {"pid", rank},
         {"tid", key.second},
         {"args", {{"sort_index", key.second}}}});
  }
  std::map<std::pair<std::string, int64_t>, std::vector<Placed>> collectives;
  for (const Placed& p : placed) {
    put(slice(p));
    if (p.event->sequence >= 0) collectives[{p.event->group, p.event->sequence}].push_back(p);
  }
  int64_t id = 0;
  for (const auto& [key, ranks] : collectives) add_arrows(ranks, id, put);
  out << "\n]}\n";
  file.finish();
}

}  // namespace tautline
