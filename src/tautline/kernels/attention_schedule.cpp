#include "tautline/kernels/attention_schedule.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "tautline/base/error.h"

namespace tautline::kernels {
namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

int64_t tiles_of(int64_t rows, int64_t tile) { return (rows + tile - 1) / tile; }

/// Tiles of `size` that rows [first, last) touch.
int64_t touched(KeyRange rows, int64_t size) {
  return rows.last <= rows.first ? 0 : (rows.last - 1) / size - rows.first / size + 1;
}

/// What the rows [begin, end) of one side see of the other: keys for queries, queries for keys.
KeyRange visible(const AttentionScheduleRequest& r, int64_t begin, int64_t end, int64_t nq,
                 int64_t nk) {
  if (r.pass == AttentionPass::kQueries)
    return {visible_keys(r.window, begin, nq, nk).first,
            visible_keys(r.window, end - 1, nq, nk).last};
  // Query i sees key j where p - left <= j <= p + right: p = i + nk - nq in [j - right, j + left].
  const int64_t shift = nk - nq;
  return {r.window.right < 0 ? 0 : clamp_to(begin - r.window.right - shift, 0, nq),
          r.window.left < 0 ? nq : clamp_to(end + r.window.left - shift, 0, nq)};
}

std::vector<AttentionTile> all_tiles(const AttentionScheduleRequest& r) {
  const bool queries = r.pass == AttentionPass::kQueries;
  std::vector<AttentionTile> tiles;
  for (int64_t b = 0; b < r.sequences; ++b) {
    const int64_t nq = r.q_offsets ? r.q_offsets[b + 1] - r.q_offsets[b] : r.seeds;
    const int64_t nk = r.k_offsets[b + 1] - r.k_offsets[b];
    const int64_t rows = queries ? nq : nk, count = tiles_of(rows, r.tile);
    for (int64_t t = 0; t < count; ++t) {
      const int64_t end = std::min(rows, (t + 1) * r.tile);
      const KeyRange other = visible(r, t * r.tile, end, nq, nk);
      const int64_t work = r.tile_work + touched(other, r.other_tile) * (queries ? 1 : r.group);
      if (work > kMost || count > kMost)
        throw user_error("attention_schedule: sequence ", b, " of ", nq, " queries and ", nk,
                         " keys has tiles beyond 2^31");
      tiles.push_back(
          {static_cast<int32_t>(b), 0, static_cast<int32_t>(t), static_cast<int32_t>(work)});
    }
  }
  const size_t one_head = tiles.size();
  tiles.reserve(one_head * static_cast<size_t>(r.heads));
  for (int64_t head = 1; head < r.heads; ++head)
    for (size_t i = 0; i < one_head; ++i) {
      tiles.push_back(tiles[i]);
      tiles.back().head = static_cast<int32_t>(head);
    }
  if (r.heads == 0) tiles.clear();
  return tiles;
}

/// By falling work, equals in their order.
std::vector<AttentionTile> sorted(const std::vector<AttentionTile>& tiles) {
  int32_t most = 0;
  for (const AttentionTile& t : tiles) most = std::max(most, t.work);
  // A million tokens against each other have 8,000 kinds of work; were there more than tiles, a
  // comparison sort would be the smaller one.
  if (most > static_cast<int64_t>(tiles.size()) + (1 << 20)) {
    auto out = tiles;
    std::stable_sort(out.begin(), out.end(),
                     [](const auto& a, const auto& b) { return a.work > b.work; });
    return out;
  }
  std::vector<int64_t> place(static_cast<size_t>(most) + 2);
  for (const AttentionTile& t : tiles) ++place[most - t.work + 1];
  for (size_t i = 1; i < place.size(); ++i) place[i] += place[i - 1];
  std::vector<AttentionTile> out(tiles.size());
  for (const AttentionTile& t : tiles) out[place[most - t.work]++] = t;
  return out;
}

void check(const AttentionScheduleRequest& r) {
  if (r.ctas < 1 || r.tile < 1 || r.other_tile < 1)
    throw user_error("attention_schedule: ", r.ctas, " CTAs, tiles of ", r.tile, " and ",
                     r.other_tile, " rows; each must be at least 1");
}

/// Tile i goes to CTA owner(i), in the order of i.
template <class Owner>
AttentionSchedule dealt(const std::vector<AttentionTile>& tiles, int64_t ctas, Owner&& owner) {
  AttentionSchedule s;
  s.starts.assign(ctas + 1, 0);
  s.work.assign(ctas, 0);
  const auto count = static_cast<int64_t>(tiles.size());
  for (int64_t i = 0; i < count; ++i) ++s.starts[owner(i) + 1];
  for (int64_t c = 0; c < ctas; ++c) s.starts[c + 1] += s.starts[c];
  std::vector<int64_t> next(s.starts.begin(), s.starts.end() - 1);
  s.tiles.resize(tiles.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t c = owner(i);
    s.tiles[next[c]++] = tiles[i];
    s.work[c] += tiles[i].work;
  }
  return s;
}

}  // namespace

int64_t AttentionSchedule::total_work() const {
  int64_t total = 0;
  for (const int64_t w : work) total += w;
  return total;
}

double AttentionSchedule::imbalance() const {
  const int64_t total = total_work();
  if (total == 0) return 1.0;
  const int64_t most = *std::max_element(work.begin(), work.end());
  return static_cast<double>(most) * static_cast<double>(work.size()) / static_cast<double>(total);
}

AttentionSchedule attention_schedule(const AttentionScheduleRequest& request) {
  check(request);
  const int64_t ctas = request.ctas;
  return dealt(sorted(all_tiles(request)), ctas, [&](int64_t i) {
    const int64_t round = i / ctas, place = i % ctas;
    return round % 2 == 0 ? place : ctas - 1 - place;
  });
}

AttentionSchedule attention_schedule_in_order(const AttentionScheduleRequest& request) {
  check(request);
  const std::vector<AttentionTile> tiles = all_tiles(request);
  const auto count = static_cast<int64_t>(tiles.size());
  int64_t cta = 0;
  return dealt(tiles, request.ctas, [&](int64_t i) {
    if (i == 0) cta = 0;
    while (i >= even_share(count, request.ctas, cta).last) ++cta;
    return cta;
  });
}

std::string describe(const AttentionSchedule& s) {
  const auto ctas = static_cast<int64_t>(s.work.size());
  const int64_t most = *std::max_element(s.work.begin(), s.work.end());
  char line[200];
  std::snprintf(
      line, sizeof line, "%zu tiles on %lld CTAs, work %lld in all, busiest %lld, max/mean %.4f\n",
      s.tiles.size(), static_cast<long long>(ctas), static_cast<long long>(s.total_work()),
      static_cast<long long>(most), s.imbalance());
  std::string out = line;
  constexpr int64_t kCtas = 4, kTiles = 6;
  for (int64_t c = 0; c < std::min(ctas, kCtas); ++c) {
    const int64_t count = s.starts[c + 1] - s.starts[c];
    std::snprintf(line, sizeof line, "CTA %lld: %lld tiles, work %lld; sequence/head/tile:work",
                  static_cast<long long>(c), static_cast<long long>(count),
                  static_cast<long long>(s.work[c]));
    out += line;
    for (int64_t i = 0; i < std::min(count, kTiles); ++i) {
      const AttentionTile& t = s.tiles[s.starts[c] + i];
      std::snprintf(line, sizeof line, " %d/%d/%d:%d", t.sequence, t.head, t.tile, t.work);
      out += line;
    }
    out += count > kTiles ? " ...\n" : "\n";
  }
  return out;
}

}  // namespace tautline::kernels
