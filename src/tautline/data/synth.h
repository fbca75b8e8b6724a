// `tautline data synth`: a seeded synthetic event log of any size, with structure planted in it.
//
// Items: popularity rank r has weight (r + 1)^-s. Item r belongs to cluster r mod G, so that all
// clusters have items of every popularity. Each item has three fixed successors in its cluster.
// Users: a few clusters of interest; events per user are log-normal, in sessions of about six
// events that follow a day and week cycle.
// The next item of a session is
//   - with 0.7 a successor of the last item; which of the three depends on the item before the last
//     (80 % one of them): a model of the last item alone finds the three, a model of the last two
//     finds the one;
//   - with 0.2 a popular item of the session's cluster;
//   - with 0.1 a popular item of another of the user's clusters, where the session then goes on.
// So popularity finds little, sequential rules much, and a sequence model more.
// `action` (view, cart, buy) and `clicked` (0, 1) are drawn from a bias of the user, a bias of the
// item, and whether the item is of the user's first cluster.
//
// Everything is a function of the seed, the user's number and the item's rank: no table is held,
// memory does not grow with any size, and the log is the same for any number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tautline::data {

struct SynthOptions {
  std::string out;  // path or URI of a file: .csv or .tsv, with .gz or .zst if wished, or .parquet
  int64_t users = 5'000, items = 2'000;
  double events_mean = 25;  // of a user
  uint64_t seed = 1;
  int threads = 0;  // 0: as many as the machine has
  bool overwrite = false;
};

struct SynthEvent {
  int64_t item = 0;  // popularity rank
  int64_t time = 0;  // seconds
  int action = 0;    // of kSynthActions
  int clicked = 0;
  float price = 0;
};
inline constexpr const char* kSynthActions[] = {"view", "cart", "buy"};

/// The history of one user, in order of time. At least one event.
std::vector<SynthEvent> synthetic_user(const SynthOptions& options, int64_t user);

/// Writes user, item, time, action, price, clicked; returns the number of events. Errors: the file
/// exists and `overwrite` is off, another extension, a size that is not positive.
int64_t write_synthetic_log(const SynthOptions& options,
                            const std::function<void(double share)>& progress = {});

}  // namespace tautline::data
