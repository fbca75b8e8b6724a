#include "tautline/data/read/assemble.h"

#include <algorithm>
#include <limits>

#include "tautline/base/error.h"

namespace tautline::data {
namespace {

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from, int64_t first, int64_t count) {
  to.insert(to.end(), from.begin() + first, from.begin() + first + count);
}

size_t position_of(std::vector<std::string>& names, const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  names.push_back(name);
  return names.size() - 1;
}

/// Runs `copy(event, sample, dead)` for each sample: its first event in the block, the sample, and
/// how many leading tokens are no targets.
template <class Copy>
void for_each(const std::vector<Sample>& samples, const std::vector<Located>& places, Copy copy) {
  for (size_t i = 0; i < samples.size(); ++i)
    copy(*places[i].block, places[i].block->offsets[places[i].row] + samples[i].begin, samples[i],
         samples[i].length - samples[i].targets);
}

}  // namespace

ColumnChoice choose_columns(const std::vector<std::string>& categorical,
                            const std::vector<std::string>& dense,
                            const std::vector<std::string>& labels) {
  ColumnChoice choice;
  auto& [columns, roles] = choice;
  for (const auto& name : categorical)
    roles.categorical.push_back({name, position_of(columns.categorical, name)});
  for (const auto& name : dense) roles.dense.push_back({name, position_of(columns.real, name)});
  for (const auto& name : labels) roles.labels.push_back({name, position_of(columns.real, name)});
  return choice;
}

void assemble(const std::vector<Sample>& samples, const std::vector<Located>& places,
              const std::vector<int64_t>& index, const ColumnRoles& roles, Batch& batch) {
  batch.sample = index;
  batch.user.reserve(samples.size());
  batch.offsets.reserve(samples.size() + 1);
  for (const Sample& s : samples) {
    batch.user.push_back(s.user);
    batch.offsets.push_back(batch.offsets.back() + s.length);
  }
  const size_t tokens = static_cast<size_t>(batch.offsets.back());
  batch.item.reserve(tokens);
  batch.time.reserve(tokens);
  batch.target.reserve(tokens);
  for_each(
      samples, places, [&](const EventBlock& block, int64_t event, const Sample& s, int64_t dead) {
        TAUTLINE_INVARIANT(
            event + s.length < static_cast<int64_t>(block.item.size()),
            "user " << s.user << ": events to " << event + s.length << " of " << block.item.size());
        append(batch.item, block.item, event, s.length);
        append(batch.time, block.time, event, s.length);
        batch.target.insert(batch.target.end(), dead, 0);
        append(batch.target, block.item, event + dead + 1, s.targets);
      });
  for (const auto& [name, position] : roles.categorical) {
    auto& to = batch.categorical[name];
    to.reserve(tokens);
    for_each(samples, places,
             [&, p = position](const EventBlock& block, int64_t event, const Sample& s, int64_t) {
               append(to, block.categorical[p], event, s.length);
             });
  }
  const auto real = [&](const ColumnRoles::Role& role) {
    auto& to = batch.dense[role.name];
    if (!to.empty()) return;  // dense and label at once: it is there
    to.reserve(tokens);
    for_each(samples, places,
             [&](const EventBlock& block, int64_t event, const Sample& s, int64_t) {
               append(to, block.real[role.position], event, s.length);
             });
  };
  for (const auto& role : roles.dense) real(role);
  for (const auto& role : roles.labels) {
    real(role);
    auto& to = batch.next_label[role.name];
    to.reserve(tokens);
    for_each(samples, places,
             [&](const EventBlock& block, int64_t event, const Sample& s, int64_t dead) {
               to.insert(to.end(), dead, std::numeric_limits<float>::quiet_NaN());
               append(to, block.real[role.position], event + dead + 1, s.targets);
             });
  }
}

void append_evaluated(int64_t user, const Located& place, int64_t known, int64_t max_length,
                      const ColumnRoles& roles, EvaluationBatch& batch) {
  const EventBlock& block = *place.block;
  const int64_t begin = block.offsets[place.row], held_out = begin + known;
  TAUTLINE_INVARIANT(known >= 1 && held_out < block.offsets[place.row + 1],
                     "user " << user << ": " << known << " known events of "
                             << block.offsets[place.row + 1] - begin);
  const int64_t tokens = std::min(known, max_length), first = held_out - tokens;
  batch.user.push_back(user);
  batch.offsets.push_back(batch.offsets.back() + tokens);
  append(batch.item, block.item, first, tokens);
  append(batch.time, block.time, first, tokens);
  for (const auto& [name, position] : roles.categorical)
    append(batch.categorical[name], block.categorical[position], first, tokens);
  for (const auto& [name, position] : roles.dense)
    append(batch.dense[name], block.real[position], first, tokens);
  for (const auto& [name, position] : roles.labels) {
    const auto is_dense = [&n = name](const auto& role) { return role.name == n; };
    if (std::none_of(roles.dense.begin(), roles.dense.end(), is_dense))
      append(batch.dense[name], block.real[position], first, tokens);
    batch.label[name].push_back(block.real[position][held_out]);
  }
  batch.target.push_back(block.item[held_out]);
  batch.later.push_back(block.time[held_out] > block.time[held_out - 1]);
  append(batch.seen, block.item, begin, known);
  batch.seen_offsets.push_back(batch.seen_offsets.back() + known);
}

}  // namespace tautline::data
