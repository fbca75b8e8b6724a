#include "tautline/balance/deal.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>

#include "tautline/base/error.h"

namespace tautline::balance {

std::vector<int32_t> deal_by_length(std::span<const int64_t> lengths, int ranks, const Cost& cost) {
  TAUTLINE_INVARIANT(ranks >= 1, "ranks " << ranks);
  const int64_t samples = static_cast<int64_t>(lengths.size());
  std::vector<int32_t> deal(samples, 0);
  if (ranks == 1) return deal;

  std::vector<double> costs(samples);
  for (int64_t i = 0; i < samples; ++i) costs[i] = cost.of(lengths[i]);
  std::vector<int64_t> order(samples);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return costs[a] > costs[b]; });

  using Slot = std::tuple<double, int64_t, int32_t>;  // load, samples, rank
  std::priority_queue<Slot, std::vector<Slot>, std::greater<>> lightest;
  for (int32_t rank = 0; rank < ranks; ++rank) lightest.emplace(0.0, 0, rank);
  for (const int64_t i : order) {
    const auto [load, count, rank] = lightest.top();
    lightest.pop();
    deal[i] = rank;
    lightest.emplace(load + costs[i], count + 1, rank);
  }
  return deal;
}

std::vector<int32_t> deal_in_order(int64_t samples, int ranks) {
  TAUTLINE_INVARIANT(ranks >= 1, "ranks " << ranks);
  std::vector<int32_t> deal(samples);
  for (int32_t rank = 0; rank < ranks; ++rank)
    std::fill(deal.begin() + samples * rank / ranks, deal.begin() + samples * (rank + 1) / ranks,
              rank);
  return deal;
}

std::vector<double> rank_loads(std::span<const int64_t> lengths, std::span<const int32_t> deal,
                               int ranks, const Cost& cost) {
  TAUTLINE_INVARIANT(lengths.size() == deal.size(),
                     "lengths " << lengths.size() << ", deal " << deal.size());
  std::vector<double> loads(ranks, 0.0);
  for (size_t i = 0; i < lengths.size(); ++i) loads[deal[i]] += cost.of(lengths[i]);
  return loads;
}

double max_over_mean(std::span<const double> loads) {
  const double total = std::accumulate(loads.begin(), loads.end(), 0.0);
  if (total <= 0) return 1.0;
  const double maximum = *std::max_element(loads.begin(), loads.end());
  return maximum * static_cast<double>(loads.size()) / total;
}

double least_maximum(std::span<const double> costs, int ranks) {
  TAUTLINE_INVARIANT(ranks >= 1, "ranks " << ranks);
  std::vector<double> sorted(costs.begin(), costs.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const int64_t count = static_cast<int64_t>(sorted.size());
  double bound = std::accumulate(sorted.begin(), sorted.end(), 0.0) / ranks;
  for (int64_t k = 0; k * ranks < count; ++k) {
    const auto last = sorted.begin() + k * ranks + 1;
    bound = std::max(bound, std::accumulate(last - (k + 1), last, 0.0));
  }
  return bound;
}

}  // namespace tautline::balance
