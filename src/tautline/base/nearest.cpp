#include "tautline/base/nearest.h"

#include <algorithm>

namespace tautline {

int edit_distance(std::string_view a, std::string_view b) {
  // Optimal string alignment: rows i - 2, i - 1, i of the table.
  const size_t n = b.size();
  std::vector<int> before(n + 1), last(n + 1), row(n + 1);
  for (size_t j = 0; j <= n; ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= n; ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[n];
}

std::string nearest_name(std::string_view written, const std::vector<std::string>& valid) {
  std::string best;
  int best_distance = 1 << 20;
  for (const std::string& name : valid) {
    const bool prefix = written.size() >= 3 && (name.starts_with(written) ||
                                                (name.size() >= 3 && written.starts_with(name)));
    const int distance = prefix ? 1 : edit_distance(written, name);
    const int most = std::max<int>(1, static_cast<int>(std::max(written.size(), name.size()) / 3));
    // Not near: a wrong suggestion costs more than the list of valid names.
    if (distance > most) continue;
    if (distance < best_distance) best = name, best_distance = distance;
  }
  return best;
}

std::string suggestion(std::string_view written, const std::vector<std::string>& valid) {
  const std::string near = nearest_name(written, valid);
  if (!near.empty()) return "; did you mean '" + near + "'?";
  return valid.empty() ? "; no name is valid here" : "; valid: " + joined(valid);
}

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  std::string out;
  for (const std::string& word : words) {
    if (!out.empty()) out += between;
    out += word;
  }
  return out;
}

}  // namespace tautline
