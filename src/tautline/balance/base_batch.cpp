#include "tautline/balance/base_batch.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>

#include "tautline/base/error.h"

namespace tautline::balance {
namespace {

struct Unit {  // what is dealt as a whole: a pair, or a single where n is odd
  double cost;
  int64_t heavy, light;  // equal in a single
};

std::vector<int64_t> by_falling_cost(std::span<const double> costs) {
  std::vector<int64_t> order(costs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return costs[a] > costs[b]; });
  return order;
}

/// Heaviest beside lightest, then the heaviest of those pairs beside the lightest pair, and so on:
/// every run of 2^k that starts at a multiple of 2^k is even.
std::vector<int64_t> even_order(std::span<const double> costs, const std::vector<int64_t>& held) {
  struct Run {
    double cost;
    std::vector<int64_t> members;
  };
  std::vector<Run> runs;
  for (const int64_t b : held) runs.push_back({costs[b], {b}});
  while (runs.size() > 1) {
    std::stable_sort(runs.begin(), runs.end(),
                     [](const Run& a, const Run& b) { return a.cost > b.cost; });
    const size_t half = runs.size() / 2;
    for (size_t i = 0; i < half; ++i) {
      const Run& light = runs[runs.size() - 1 - i];
      runs[i].cost += light.cost;
      runs[i].members.insert(runs[i].members.end(), light.members.begin(), light.members.end());
    }
    runs.resize(runs.size() - half);
  }
  return runs.empty() ? std::vector<int64_t>{} : runs[0].members;
}

}  // namespace

std::vector<int64_t> merge_base_batches(std::span<const double> costs, int64_t steps) {
  const int64_t count = static_cast<int64_t>(costs.size());
  TAUTLINE_INVARIANT(steps >= 1 && count % steps == 0,
                     count << " base batches, " << steps << " steps");
  const int64_t per_step = count / steps, singles = per_step % 2 * steps;
  const std::vector<int64_t> sorted = by_falling_cost(costs);

  std::vector<std::vector<int64_t>> held(steps);
  std::vector<double> load(steps, 0.0);
  const int64_t pairs = (count - singles) / 2;
  for (int64_t k = 0; k < singles; ++k) {  // the middle of the order, one to each step
    const int64_t single = sorted[pairs + k];
    held[k].push_back(single);
    load[k] += costs[single];
  }
  std::vector<Unit> units(pairs);
  for (int64_t p = 0; p < pairs; ++p) {
    const int64_t heavy = sorted[p], light = sorted[count - 1 - p];
    units[p] = {costs[heavy] + costs[light], heavy, light};
  }
  std::stable_sort(units.begin(), units.end(),
                   [](const Unit& a, const Unit& b) { return a.cost > b.cost; });

  using Slot = std::tuple<double, int64_t>;  // load, step
  std::priority_queue<Slot, std::vector<Slot>, std::greater<>> lightest;
  for (int64_t k = 0; k < steps; ++k)
    if (per_step >= 2) lightest.emplace(load[k], k);
  for (const Unit& unit : units) {
    const auto [before, k] = lightest.top();
    lightest.pop();
    held[k].push_back(unit.heavy);
    held[k].push_back(unit.light);
    if (static_cast<int64_t>(held[k].size()) < per_step) lightest.emplace(before + unit.cost, k);
  }

  std::vector<int64_t> order;
  order.reserve(count);
  for (const auto& step : held) {
    const auto even = even_order(costs, step);
    order.insert(order.end(), even.begin(), even.end());
  }
  return order;
}

}  // namespace tautline::balance
