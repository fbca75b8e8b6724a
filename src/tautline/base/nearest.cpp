#include "tautline/base/nearest.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "tautline/base/excerpt.h"

namespace tautline {
namespace {

/// Words that people use for what has another name here; no spelling leads from one to the other.
constexpr std::array kSynonyms = {std::pair{"gpu", "cuda"},
                                  std::pair{"nvidia", "cuda"},
                                  std::pair{"float32", "fp32"},
                                  std::pair{"bfloat16", "bf16"},
                                  std::pair{"learning_rate", "lr"},
                                  std::pair{"hidden_size", "width"},
                                  std::pair{"max_steps", "steps"},
                                  std::pair{"recall@10", "hr@10"},
                                  std::pair{"rotary", "rope"},
                                  std::pair{"bce", "binary"},
                                  std::pair{"replicated", "data_parallel"}};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string synonym(std::string_view written, const std::vector<std::string>& valid) {
  for (const auto& [word, name] : kSynonyms)
    if (lower(written) == word && std::find(valid.begin(), valid.end(), name) != valid.end())
      return name;
  return "";
}

}  // namespace

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
  std::string best = synonym(written, valid);
  if (!best.empty()) return best;
  int best_distance = 1 << 20;
  for (const std::string& name : valid) {
    const bool prefix = written.size() >= 3 && (name.starts_with(written) ||
                                                (name.size() >= 3 && written.starts_with(name)));
    const int longest = static_cast<int>(std::max(written.size(), name.size()));
    const int shortest = static_cast<int>(std::min(written.size(), name.size()));
    if (!prefix && longest - shortest > std::max(1, longest / 3)) continue;  // as far at least
    const int distance = prefix ? 1 : edit_distance(written, name);
    // Not near: a wrong suggestion costs more than the list of valid names.
    if (distance > std::max(1, longest / 3) || distance >= longest) continue;
    if (distance < best_distance) best = name, best_distance = distance;
  }
  return best;
}

std::string suggestion(std::string_view written, const std::vector<std::string>& valid) {
  const std::string near = nearest_name(written, valid);
  if (!near.empty()) return "; did you mean '" + excerpt(near) + "'?";
  return valid.empty() ? "; no name is valid here" : "; valid: " + excerpts(valid);
}

std::string choice_suggestion(std::string_view written, const std::vector<std::string>& valid) {
  const std::string text = suggestion(written, valid);
  return text.ends_with('?') ? text + " (valid: " + excerpts(valid) + ")" : text;
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
