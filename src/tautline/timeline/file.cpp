#include "tautline/timeline/file.h"

#include <fstream>

#include <nlohmann/json.hpp>

#include "tautline/base/error.h"
#include "tautline/base/new_file.h"

namespace tautline {
namespace {

using Json = nlohmann::ordered_json;

Json event_json(const TimelineEvent& e) {
  Json out = {{"step", e.step}, {"rank", e.rank}, {"stream", e.stream}, {"kind", e.kind}};
  if (!e.name.empty()) out["name"] = e.name;
  if (e.arrival != -1) out["arrival"] = e.arrival;
  out["start"] = e.start;
  out["end"] = e.end;
  if (e.bytes != 0) out["bytes"] = e.bytes;
  if (e.flop != 0) out["flop"] = e.flop;
  if (!e.group.empty()) out["group"] = e.group;
  if (!e.tier.empty()) out["tier"] = e.tier;
  if (e.sequence != -1) out["sequence"] = e.sequence;
  return out;
}

template <class T>
void read(const Json& in, const char* key, T& value) {
  if (const auto found = in.find(key); found != in.end()) value = found->template get<T>();
}

TimelineEvent event_from(const Json& in) {
  TimelineEvent e;
  read(in, "step", e.step);
  read(in, "rank", e.rank);
  read(in, "stream", e.stream);
  read(in, "kind", e.kind);
  read(in, "name", e.name);
  read(in, "arrival", e.arrival);
  e.start = in.at("start");
  e.end = in.at("end");
  read(in, "bytes", e.bytes);
  read(in, "flop", e.flop);
  read(in, "group", e.group);
  read(in, "tier", e.tier);
  read(in, "sequence", e.sequence);
  return e;
}

TimelineHeader header_from(const Json& in) {
  TimelineHeader header;
  if (in.at("timeline") != 1) throw user_error("format ", in.at("timeline").dump(), ", not 1");
  read(in, "plan", header.plan_digest);
  read(in, "world", header.world);
  read(in, "clock_spread", header.clock_spread_seconds);
  return header;
}

}  // namespace

void write_timeline(const Timeline& timeline, const std::string& path) {
  NewFile file(path);
  std::ostream& out = file.out();
  const Json header = {{"timeline", 1},
                       {"plan", timeline.header.plan_digest},
                       {"world", timeline.header.world},
                       {"clock_spread", timeline.header.clock_spread_seconds}};
  constexpr auto kReplace = Json::error_handler_t::replace;  // a name that is not UTF-8
  out << header.dump(-1, ' ', false, kReplace) << '\n';
  for (const TimelineEvent& event : timeline.events)
    out << event_json(event).dump(-1, ' ', false, kReplace) << '\n';
  file.finish();
}

Timeline read_timeline(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw user_error("cannot read ", path);
  Timeline timeline;
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    const bool cut = in.eof();  // no newline behind it
    try {
      const Json json = Json::parse(line);
      if (number == 1)
        timeline.header = header_from(json);
      else
        timeline.events.push_back(event_from(json));
    } catch (const std::exception& error) {
      if (cut && number > 1) break;
      throw user_error(path, ":", number, ": not a line of a timeline: ", error.what());
    }
  }
  if (in.bad()) throw user_error("cannot read ", path);
  return timeline;
}

}  // namespace tautline
