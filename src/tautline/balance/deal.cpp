#include "tautline/balance/deal.h"

#include <algorithm>
#include <numeric>

#include "tautline/base/error.h"

namespace tautline::balance {

namespace {

struct Weighed {
  double cost;
  int64_t sample;
  bool operator<(const Weighed& other) const {  // falling cost, ties by index
    return cost != other.cost ? cost > other.cost : sample < other.sample;
  }
};

struct Slot {
  double load;
  int64_t samples;
  int32_t rank;
  bool before(const Slot& other) const {
    if (load != other.load) return load < other.load;
    return samples != other.samples ? samples < other.samples : rank < other.rank;
  }
};

/// Restores the heap after its top grew: half the moves of a pop and a push.
void sift_down(std::vector<Slot>& heap) {
  const size_t size = heap.size();
  const Slot grown = heap[0];
  size_t hole = 0;
  for (size_t child = 1; child < size; child = 2 * hole + 1) {
    if (child + 1 < size && heap[child + 1].before(heap[child])) ++child;
    if (!heap[child].before(grown)) break;
    heap[hole] = heap[child];
    hole = child;
  }
  heap[hole] = grown;
}

}  // namespace

std::vector<int32_t> deal_by_length(std::span<const int64_t> lengths, int ranks, const Cost& cost) {
  TAUTLINE_INVARIANT(ranks >= 1, "ranks " << ranks);
  std::vector<int32_t> deal(lengths.size(), 0);
  if (ranks == 1) return deal;

  std::vector<Weighed> order(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i)
    order[i] = {cost.of(lengths[i]), static_cast<int64_t>(i)};
  std::sort(order.begin(), order.end());

  std::vector<Slot> lightest(ranks);  // a heap; equal loads and ranks in order are one already
  for (int32_t rank = 0; rank < ranks; ++rank) lightest[rank] = {0.0, 0, rank};
  for (const Weighed& next : order) {
    Slot& slot = lightest[0];
    deal[next.sample] = slot.rank;
    slot.load += next.cost;
    ++slot.samples;
    sift_down(lightest);
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
