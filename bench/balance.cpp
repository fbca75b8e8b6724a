// How even the ranks of a step are, before and after balancing, and how even they could be.
//
// Lengths are log-normal (sigma .9, mean 400, clipped to [1, 2048]), the shape of user histories.
// A rank's share of a step is 8 base batches of 128 samples. Load is a sample's cost summed over a
// rank; the figure is max over mean of the loads, which is the step's time over a balanced step's:
// 1.05 says that every rank but the heaviest waits 5 % of the step.
//
//   in order           what readers give: consecutive samples
//   rank buffers, K    base batch shuffling as published: every rank sorts its own buffer of K
//                      steps and merges heavy base batches with light ones
//   step buffer, 16    the reader's form (plan.balance.base_batch): a buffer of 16 whole steps, the
//                      same on any number of ranks, dealt in order
//   by length          deal_by_length inside the step's fixed set (the default)
//   best possible      the lower bound of balance/deal.h: no deal of the set is more even
//
// Usage: bench_balance [OUT.json COMMIT]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tautline/balance/base_batch.h"
#include "tautline/balance/deal.h"
#include "tautline/base/random.h"

namespace tautline::balance {
namespace {

constexpr int64_t kBaseBatch = 128, kBaseBatchesPerRank = 8;
constexpr int kSteps = 128;

using Lengths = std::vector<int64_t>;
using Ratios = std::vector<double>;  // max over mean, by step

Lengths draw_lengths(int64_t count, uint64_t seed) {
  constexpr double kSigma = 0.9;
  const double mu = std::log(400.0) - kSigma * kSigma / 2;
  Random random(seed, RandomUse::kSynthetic);
  Lengths lengths(count);
  for (auto& n : lengths)
    n = std::clamp<int64_t>(std::llround(std::exp(mu + kSigma * random.normal())), 1, 2048);
  return lengths;
}

std::vector<double> base_batch_costs(const int64_t* lengths, int64_t base_batches,
                                     const Cost& cost) {
  std::vector<double> costs(base_batches, 0.0);
  for (int64_t i = 0; i < base_batches * kBaseBatch; ++i)
    costs[i / kBaseBatch] += cost.of(lengths[i]);
  return costs;
}

/// The log, step after step: [kSteps][ranks x samples of a rank], consecutive samples on a rank.
struct Epoch {
  Lengths lengths;
  int ranks;
  int64_t per_rank;
  Cost cost;
  int64_t per_step() const { return ranks * per_rank; }
  std::span<const int64_t> step(int64_t k) const {
    return std::span(lengths).subspan(k * per_step(), per_step());
  }
};

Ratios in_order(const Epoch& epoch) {
  Ratios ratios;
  for (int64_t k = 0; k < kSteps; ++k)
    ratios.push_back(max_over_mean(rank_loads(
        epoch.step(k), deal_in_order(epoch.per_step(), epoch.ranks), epoch.ranks, epoch.cost)));
  return ratios;
}

Ratios by_length(const Epoch& epoch) {
  Ratios ratios;
  for (int64_t k = 0; k < kSteps; ++k)
    ratios.push_back(max_over_mean(
        rank_loads(epoch.step(k), deal_by_length(epoch.step(k), epoch.ranks, epoch.cost),
                   epoch.ranks, epoch.cost)));
  return ratios;
}

Ratios best_possible(const Epoch& epoch) {
  Ratios ratios;
  for (int64_t k = 0; k < kSteps; ++k) {
    std::vector<double> costs;
    for (const int64_t n : epoch.step(k)) costs.push_back(epoch.cost.of(n));
    const double mean = std::accumulate(costs.begin(), costs.end(), 0.0) / epoch.ranks;
    ratios.push_back(least_maximum(costs, epoch.ranks) / mean);
  }
  return ratios;
}

/// Each rank merges the base batches of its own next `window` steps.
Ratios rank_buffers(const Epoch& epoch, int64_t window) {
  const int64_t n = epoch.per_rank / kBaseBatch;
  Ratios ratios;
  for (int64_t first = 0; first + window <= kSteps; first += window) {
    std::vector<std::vector<double>> loads(window, std::vector<double>(epoch.ranks, 0.0));
    for (int rank = 0; rank < epoch.ranks; ++rank) {
      std::vector<double> costs;
      for (int64_t k = first; k < first + window; ++k) {
        const auto own =
            base_batch_costs(epoch.step(k).data() + rank * epoch.per_rank, n, epoch.cost);
        costs.insert(costs.end(), own.begin(), own.end());
      }
      const auto order = merge_base_batches(costs, window);
      for (int64_t b = 0; b < n * window; ++b) loads[b / n][rank] += costs[order[b]];
    }
    for (const auto& step : loads) ratios.push_back(max_over_mean(step));
  }
  return ratios;
}

/// The reader's: whole steps merge, then ranks take consecutive base batches.
Ratios step_buffer(const Epoch& epoch, int64_t window) {
  const int64_t n = epoch.per_step() / kBaseBatch, per_rank = epoch.per_rank / kBaseBatch;
  Ratios ratios;
  for (int64_t first = 0; first + window <= kSteps; first += window) {
    const auto costs = base_batch_costs(epoch.step(first).data(), n * window, epoch.cost);
    const auto order = merge_base_batches(costs, window);
    for (int64_t k = 0; k < window; ++k) {
      std::vector<double> loads(epoch.ranks, 0.0);
      for (int64_t b = 0; b < n; ++b) loads[b / per_rank] += costs[order[k * n + b]];
      ratios.push_back(max_over_mean(loads));
    }
  }
  return ratios;
}

double mean_of(const Ratios& ratios) {
  return std::accumulate(ratios.begin(), ratios.end(), 0.0) / static_cast<double>(ratios.size());
}

/// Processor time, so that a busy machine does not count.
double milliseconds_of_a_deal(const Epoch& epoch) {
  std::vector<double> times;
  for (int64_t k = 0; k < 16; ++k) {
    const std::clock_t begin = std::clock();
    const auto deal = deal_by_length(epoch.step(k), epoch.ranks, epoch.cost);
    times.push_back(1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

nlohmann::json measure(int ranks, int64_t per_rank, const char* cost_name, const Cost& cost) {
  const Epoch epoch{draw_lengths(ranks * per_rank * kSteps, 1), ranks, per_rank, cost};
  std::printf("\n%d ranks, %ld samples a rank, cost %s\n", ranks, static_cast<long>(per_rank),
              cost_name);
  std::printf("%-18s %9s %9s %9s   %s\n", "", "mean", "p99", "max", "excess removed");
  nlohmann::json rows = nlohmann::json::array();
  double before = 0;
  const auto row = [&](const std::string& name, Ratios ratios) {
    std::sort(ratios.begin(), ratios.end());
    const double mean = mean_of(ratios), p99 = ratios[(ratios.size() - 1) * 99 / 100];
    if (rows.empty()) before = mean;
    const double removed = 1 - (mean - 1) / (before - 1);
    std::printf("%-18s %9.5f %9.5f %9.5f   %5.1f %%\n", name.c_str(), mean, p99, ratios.back(),
                100 * removed);
    rows.push_back({{"method", name},
                    {"max_over_mean", mean},
                    {"p99", p99},
                    {"max", ratios.back()},
                    {"excess_removed", removed}});
  };
  row("in order", in_order(epoch));
  if (per_rank % kBaseBatch == 0) {
    for (const int64_t window : {4, 16, 64})
      row("rank buffers, " + std::to_string(window), rank_buffers(epoch, window));
    row("step buffer, 16", step_buffer(epoch, 16));
  }
  row("by length", by_length(epoch));
  row("best possible", best_possible(epoch));
  const double deal_ms = milliseconds_of_a_deal(epoch);
  std::printf("one deal by length takes %.2f ms of one core\n", deal_ms);
  return {{"ranks", ranks},  {"samples_per_rank", per_rank}, {"cost", cost_name},
          {"steps", kSteps}, {"deal_cpu_ms_p50", deal_ms},   {"rows", rows}};
}

std::string processor() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown";
}

int run(const char* file, const char* commit) {
  nlohmann::json results = nlohmann::json::array();
  const int64_t per_rank = kBaseBatch * kBaseBatchesPerRank;
  const Cost tokens{}, attention{1.0, 1.0 / 1024};  // equal shares at 1,024 tokens
  for (const int ranks : {8, 64}) {
    results.push_back(measure(ranks, per_rank, "tokens", tokens));
    results.push_back(measure(ranks, per_rank, "tokens + tokens^2 / 1024", attention));
  }
  for (const int ranks : {8, 64}) results.push_back(measure(ranks, 64, "tokens", tokens));
  if (!file) return 0;
  std::ofstream(file) << nlohmann::json{{"benchmark", "balance"},
                                        {"hardware", processor()},
                                        {"compiler", "gcc " __VERSION__},
                                        {"commit", commit},
                                        {"lengths", "log-normal, sigma 0.9, mean 400, max 2048"},
                                        {"base_batch", kBaseBatch},
                                        {"results", results}}
                             .dump(1)
                      << "\n";
  return 0;
}

}  // namespace
}  // namespace tautline::balance

int main(int argc, char** argv) {
  return tautline::balance::run(argc > 1 ? argv[1] : nullptr, argc > 2 ? argv[2] : "unknown");
}
