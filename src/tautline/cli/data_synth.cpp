#include <chrono>
#include <cstdio>

#include "tautline/base/error.h"
#include "tautline/base/progress.h"
#include "tautline/base/units.h"
#include "tautline/cli/verbs.h"
#include "tautline/data/synth.h"

namespace tautline::cli {

int data_synth(const DataSynthOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  data::SynthOptions synth;
  synth.out = options.out;
  synth.users = options.users;
  synth.items = options.items;
  synth.events_mean = options.events_mean;
  synth.seed = options.seed;
  synth.overwrite = options.overwrite;
  Progress progress({.title = "synth", .total = 1000, .bar = shows_bar(stderr, false)});
  const int64_t events = data::write_synthetic_log(
      synth, [&](double share) { progress.update(static_cast<int64_t>(1000 * share)); });
  progress.finish();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%s: %s users, %s items, %s events in %.1f s (%s events/s)\n", options.out.c_str(),
              print_integer(options.users).c_str(), print_integer(options.items).c_str(),
              print_integer(events).c_str(), took.count(),
              rounded_count(static_cast<double>(events) / took.count()).c_str());
  return kExitDone;
}

}  // namespace tautline::cli
