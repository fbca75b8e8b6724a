#include <chrono>
#include <cstdio>
#include <ctime>

#include "tautline/base/error.h"
#include "tautline/base/excerpt.h"
#include "tautline/base/log.h"
#include "tautline/base/progress.h"
#include "tautline/base/text_table.h"
#include "tautline/base/units.h"
#include "tautline/cli/verbs.h"
#include "tautline/data/build/build.h"

namespace tautline::cli {
namespace {

char delimiter_from(const std::string& text) {
  if (text.empty()) return 0;
  if (text == "\\t" || text == "tab") return '\t';
  if (text.size() != 1 || text == "\"" || text == "\n" || text == "\r")
    throw user_error(
        "--delimiter '", excerpt(text),
        "' is not one character, of one byte and neither a quote nor a line end, or 'tab'");
  return text[0];
}

data::BuildOptions build_options(const DataBuildOptions& options) {
  data::BuildOptions build;
  build.log = options.log;
  build.out = options.out;
  build.user = options.user;
  build.item = options.item;
  build.time = options.time;
  build.action = options.action;
  build.rating = options.rating;
  build.categorical = options.categorical;
  build.dense = options.dense;
  build.labels = options.labels;
  build.delimiter = delimiter_from(options.delimiter);
  build.header = options.header;
  build.time_unit = data::time_unit_from(options.time_unit);
  build.name = options.name;
  build.threads = options.threads;
  build.baselines = options.baselines;
  build.overwrite = options.overwrite;
  build.scratch = options.scratch;
  return build;
}

std::string day(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  char text[32] = "?";
  if (gmtime_r(&time, &parts)) std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

std::string decimal(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

void print_log(const LogStatistics& log, double seconds) {
  TextTable table({"log", log.name});
  table.add({"users", print_integer(log.users)});
  table.add({"events", print_integer(log.events) + " from " + day(log.first_time) + " to " +
                           day(log.last_time)});
  table.add({"events of a user", "mean " + decimal(log.length.mean, 1) + ", median " +
                                     print_integer(log.length.p50) + ", 99 % below " +
                                     print_integer(log.length.p99 + 1) + ", longest " +
                                     print_integer(log.length.maximum)});
  for (const auto& [column, vocabulary] : log.vocabularies) {
    std::string text = print_integer(vocabulary.size) + " values";
    if (vocabulary.size > 100)
      text += ", the first 100 have " + decimal(100 * vocabulary.top100_share, 1) +
              " %, Zipf exponent " + decimal(vocabulary.zipf_exponent, 2);
    table.add({column, text});
  }
  table.add({"built in", decimal(seconds, 1) + " s, " +
                             rounded_count(static_cast<double>(log.events) / seconds) +
                             " events/s, " + print_integer(log.shards) +
                             (log.shards == 1 ? " shard" : " shards")});
  std::fputs(table.str().c_str(), stdout);
}

void print_baselines(const LogStatistics& log) {
  if (log.baselines.empty()) return;
  TextTable table(
      {"baseline", ">HR@10", ">NDCG@10", ">unseen HR", ">NDCG", ">later HR", ">NDCG", "setting"});
  for (const auto& [name, m] : log.baselines)
    table.add({name, decimal(m.hr_at_10, 4), decimal(m.ndcg_at_10, 4),
               decimal(m.hr_at_10_unseen, 4), decimal(m.ndcg_at_10_unseen, 4),
               decimal(m.hr_at_10_later, 4), decimal(m.ndcg_at_10_later, 4), m.setting});
  std::printf("\n%s", table.str().c_str());
}

}  // namespace

int data_build(const DataBuildOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Progress progress({.title = "build", .total = 1000, .bar = shows_bar(stderr, false)});
  std::string doubtful;
  const LogStatistics log = data::build_log(
      build_options(options),
      [&](const data::BuildProgress& at) {
        // Reading takes about 0.6 of the time, writing 0.3, baselines the rest.
        const std::string phase = at.phase;
        const double before = phase == "read" ? 0 : phase == "write" ? 0.6 : 0.9;
        const double share = phase == "read" ? 0.6 : phase == "write" ? 0.3 : 0.1;
        const std::string events =
            at.events > 0 ? "  " + rounded_count(static_cast<double>(at.events)) + " events" : "";
        progress.update(static_cast<int64_t>(1000 * (before + share * at.share)), phase + events);
      },
      [&](const std::string& sentence) { doubtful = sentence; });
  progress.finish();
  if (!doubtful.empty()) Logger().warning(doubtful);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  print_log(log, took.count());
  print_baselines(log);
  std::printf("\nbuilt log: %s\n", options.out.c_str());
  return kExitDone;
}

}  // namespace tautline::cli
