// How fast the reader hands out batches, and what it costs in processor time.
//
//   decoded in memory   the log fits into the cache: batches are copies
//   window by window    cache off: every epoch decodes the Parquet again
//   planning            which samples make up which step, and the deal, without any event
//
// Rates are tokens of one rank. "A core" divides by the processor time of the whole process, so
// that a busy machine does not count.
//
// Usage: bench_reader LOG [--world W] [--workers N] [--batch B] [--max-length L] [--window U]
//                     [--json OUT.json COMMIT]
#include "tautline/data/read/reader.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "tautline/base/error.h"
#include "tautline/data/read/built_log.h"
#include "tautline/data/read/step_planner.h"

namespace tautline::data {
namespace {

struct Clock {
  std::chrono::steady_clock::time_point wall = std::chrono::steady_clock::now();
  std::clock_t processor = std::clock();
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - wall).count();
  }
  double core_seconds() const {
    return static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC;
  }
};

nlohmann::json report(const char* what, int64_t steps, int64_t tokens, const Clock& clock) {
  const double seconds = clock.seconds(), core_seconds = clock.core_seconds();
  const double rate = static_cast<double>(tokens) / seconds,
               core_rate = static_cast<double>(tokens) / core_seconds;
  std::printf("%-24s %8ld steps %12ld tokens %8.2f s %8.1f M tokens/s %8.1f M a core\n", what,
              static_cast<long>(steps), static_cast<long>(tokens), seconds, rate * 1e-6,
              core_rate * 1e-6);
  return {{"what", what},
          {"steps", steps},
          {"tokens", tokens},
          {"seconds", seconds},
          {"tokens_per_s", rate},
          {"core_seconds", core_seconds},
          {"tokens_per_core_s", core_rate}};
}

nlohmann::json read_epochs(const char* what, const ReaderOptions& options, bool warm) {
  const auto reader = open_reader(options);
  int64_t steps = 0, tokens = 0;
  int64_t epoch = 0;
  if (warm)  // decode first
    for (int64_t k = reader->steps_per_epoch(epoch++); k > 0; --k) reader->next();
  const Clock clock;
  do {
    for (int64_t k = reader->steps_per_epoch(epoch); k > 0; --k, ++steps)
      tokens += reader->next().tokens();
    ++epoch;
  } while (clock.seconds() < 4 || epoch < 8);  // what is loaded ahead at the end is then little
  return report(what, steps, tokens, clock);
}

nlohmann::json plan_epoch(const ReaderOptions& options) {
  const BuiltLog log(options.log, {}, options.workers);
  const Clock clock;
  StepPlanner planner(log.shape(), options, {});
  int64_t steps = 0, tokens = 0;
  do {
    const PlannedStep step = planner.next();
    tokens += step.batch.global_tokens;
    ++steps;
  } while (clock.seconds() < 2);
  return report("planning (all ranks)", steps, tokens, clock);
}

std::string processor() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown";
}

int run(int argc, char** argv) {
  if (argc < 2) throw user_error("usage: bench_reader LOG [--world W] [--workers N] ...");
  ReaderOptions options;
  options.log = argv[1];
  const char *json = nullptr, *commit = "unknown";
  for (int i = 2; i + 1 < argc; i += 2) {
    const auto is = [&](const char* name) { return std::strcmp(argv[i], name) == 0; };
    if (is("--json") && i + 2 < argc) {
      json = argv[i + 1];
      commit = argv[i + 2];
      ++i;
    } else if (is("--world")) {
      options.world = std::stoi(argv[i + 1]);
    } else if (is("--workers")) {
      options.workers = std::stoi(argv[i + 1]);
    } else if (is("--batch")) {
      options.batch = std::stoll(argv[i + 1]);
    } else if (is("--max-length")) {
      options.max_length = std::stoll(argv[i + 1]);
    } else if (is("--window")) {
      options.shuffle_window = std::stoll(argv[i + 1]);
    } else {
      throw user_error("'", argv[i], "' is not an option of bench_reader");
    }
  }
  const LogStatistics statistics = read_log_statistics(options.log);
  options.cost = {};
  std::printf("%ld users, %ld events; rank 0 of %d, %d workers, batch %ld, max_length %ld\n",
              static_cast<long>(statistics.users), static_cast<long>(statistics.events),
              options.world, options.workers, static_cast<long>(options.batch),
              static_cast<long>(options.max_length));
  nlohmann::json rows = nlohmann::json::array();
  rows.push_back(plan_epoch(options));
  options.cache_bytes = INT64_MAX;
  rows.push_back(read_epochs("decoded in memory", options, true));
  options.cache_bytes = 0;
  rows.push_back(read_epochs("window by window", options, false));
  if (!json) return 0;
  std::ofstream(json) << nlohmann::json{{"benchmark", "reader"},
                                        {"hardware", processor()},
                                        {"compiler", "gcc " __VERSION__},
                                        {"commit", commit},
                                        {"users", statistics.users},
                                        {"events", statistics.events},
                                        {"world", options.world},
                                        {"workers", options.workers},
                                        {"batch", options.batch},
                                        {"max_length", options.max_length},
                                        {"results", rows}}
                             .dump(1)
                      << "\n";
  return 0;
}

}  // namespace
}  // namespace tautline::data

int main(int argc, char** argv) {
  try {
    return tautline::data::run(argc, argv);
  } catch (const tautline::UserError& e) {
    std::fprintf(stderr, "bench_reader: %s\n", e.what());
    return tautline::kExitUser;
  }
}
