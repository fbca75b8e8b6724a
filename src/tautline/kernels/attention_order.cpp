#include "tautline/kernels/attention_order.h"

#include <algorithm>
#include <cstdio>
#include <functional>

#include "tautline/base/error.h"

namespace tautline::kernels {
namespace {

constexpr int64_t kMostRows = 0x7fffffff;

void add_sequence(const AttentionOrderRequest& r, int64_t b, std::vector<AttentionItem>& items) {
  const int64_t nq = r.q_offsets ? r.q_offsets[b + 1] - r.q_offsets[b] : r.seeds;
  const int64_t nk = r.k_offsets[b + 1] - r.k_offsets[b];
  const bool keys = r.pass == AttentionPass::kKeys;
  if (nq > kMostRows || nk > kMostRows)
    throw user_error("attention_order: sequence ", b, " of ", nq, " queries and ", nk,
                     " keys is 2^31 long or longer");
  const int64_t rows = keys ? nk : nq;
  const size_t first = items.size();
  for (int64_t begin = 0; begin < rows; begin += r.tile)
    items.push_back({static_cast<int32_t>(b), static_cast<int32_t>(begin / r.tile),
                     tile_work(r, begin, std::min(rows, begin + r.tile), nq, nk)});
  if (rows > 0 && is_one_item(r, nq, nk)) {
    AttentionItem all{static_cast<int32_t>(b), 0, 0};
    for (size_t i = first; i < items.size(); ++i) all.work += items[i].work;
    items.resize(first);
    items.push_back(all);
  }
}

/// The keys' order of items that are in their natural order.
std::vector<AttentionItem> by_sequence(const std::vector<AttentionItem>& items) {
  struct Run {
    size_t first, count;
    int64_t work;
  };
  std::vector<Run> runs;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].tile == 0) runs.push_back({i, 0, 0});
    runs.back().count += 1;
    runs.back().work = std::max(runs.back().work, std::min(items[i].work, kMostOrderWork));
  }
  std::stable_sort(runs.begin(), runs.end(),
                   [](const Run& a, const Run& b) { return a.work > b.work; });
  std::vector<AttentionItem> order;
  for (size_t group = 0; group < runs.size(); group += kOrderTogether) {
    const size_t end = std::min(runs.size(), group + kOrderTogether);
    for (size_t tile = 0, left = 1; left > 0; ++tile) {
      left = 0;
      for (size_t i = group; i < end; ++i) {
        if (tile < runs[i].count) order.push_back(items[runs[i].first + tile]);
        left += tile + 1 < runs[i].count;
      }
    }
  }
  return order;
}

}  // namespace

std::vector<AttentionItem> attention_items(const AttentionOrderRequest& request) {
  if (request.tile < 1 || request.other_tile < 1)
    throw user_error("attention_order: tiles of ", request.tile, " and ", request.other_tile,
                     " rows; each must be at least 1");
  if (request.pass == AttentionPass::kKeys && request.tile_work < 1)
    throw user_error("attention_order: tile_work ", request.tile_work, "; at least 1 is needed");
  std::vector<AttentionItem> items;
  for (int64_t b = 0; b < request.sequences; ++b) add_sequence(request, b, items);
  return items;
}

std::vector<AttentionItem> attention_order(const AttentionOrderRequest& request) {
  std::vector<AttentionItem> items = attention_items(request);
  if (request.pass == AttentionPass::kKeys) return by_sequence(items);
  std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) {
    return std::min(a.work, kMostOrderWork) > std::min(b.work, kMostOrderWork);
  });
  return items;
}

std::vector<int64_t> dealt_work(const std::vector<AttentionItem>& items, int64_t heads,
                                int64_t ctas, Dealing dealing) {
  if (ctas < 1) throw user_error("attention_order: ", ctas, " CTAs; at least 1 is needed");
  std::vector<int64_t> work(ctas);
  const int64_t count = static_cast<int64_t>(items.size()) * heads;
  if (dealing == Dealing::kRuns) {
    const int64_t each = (count + ctas - 1) / ctas;
    for (int64_t i = 0; i < count; ++i) work[i / each] += items[i / heads].work;
    return work;
  }
  if (dealing == Dealing::kNextFree) {  // a heap whose front is the CTA with the least work
    for (int64_t i = 0; i < count; ++i) {
      std::pop_heap(work.begin(), work.end(), std::greater<>());
      work.back() += items[i / heads].work;
      std::push_heap(work.begin(), work.end(), std::greater<>());
    }
    return work;
  }
  for (int64_t round = 0; round * ctas < count; ++round)
    for (int64_t cta = 0; cta < ctas; ++cta) {
      const int64_t i = order_item(round, cta, ctas);
      if (i < count) work[cta] += items[i / heads].work;
    }
  return work;
}

double imbalance(const std::vector<int64_t>& work) {
  int64_t total = 0, most = 0;
  for (const int64_t w : work) total += w, most = std::max(most, w);
  if (total == 0) return 1.0;
  return static_cast<double>(most) * static_cast<double>(work.size()) / static_cast<double>(total);
}

std::string describe(const std::vector<AttentionItem>& items, int64_t heads, int64_t ctas) {
  const std::vector<int64_t> work = dealt_work(items, heads, ctas);
  int64_t total = 0;
  for (const int64_t w : work) total += w;
  const int64_t count = static_cast<int64_t>(items.size()) * heads;
  char line[200];
  std::snprintf(
      line, sizeof line, "%lld items on %lld CTAs, work %lld in all, busiest %lld, max/mean %.4f\n",
      static_cast<long long>(count), static_cast<long long>(ctas), static_cast<long long>(total),
      static_cast<long long>(*std::max_element(work.begin(), work.end())), imbalance(work));
  std::string out = line;
  constexpr int64_t kCtas = 4, kRounds = 6;
  for (int64_t cta = 0; cta < std::min(ctas, kCtas); ++cta) {
    std::snprintf(line, sizeof line, "CTA %lld: work %lld; sequence/head/tile:work",
                  static_cast<long long>(cta), static_cast<long long>(work[cta]));
    out += line;
    for (int64_t round = 0; round <= kRounds; ++round) {
      const int64_t i = order_item(round, cta, ctas);
      if (i >= count) break;
      const AttentionItem& item = items[i / heads];
      std::snprintf(line, sizeof line, " %d/%lld/%d:%lld", item.sequence,
                    static_cast<long long>(i % heads), item.tile,
                    static_cast<long long>(item.work));
      out += round < kRounds ? line : " ...";
    }
    out += "\n";
  }
  return out;
}

}  // namespace tautline::kernels
