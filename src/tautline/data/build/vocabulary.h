// A categorical column's vocabulary: counts while the log is read, ids by descending count after.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tautline/data/build/token_table.h"
#include "tautline/data/uri.h"

namespace tautline::data {

class Vocabulary {
 public:
  /// Counts the token; its provisional id, from 1 in order of first appearance.
  int64_t count(std::string_view token) {
    const int64_t id = tokens_.find_or_add(token);
    if (id == static_cast<int64_t>(counts_.size())) counts_.push_back(0);
    ++counts_[static_cast<size_t>(id)];
    return id + 1;
  }

  int64_t size() const { return tokens_.size(); }
  /// [size + 1]: vocabulary id of each provisional id; 0 stays 0. Ids go by descending count, ties
  /// by first appearance.
  std::vector<int64_t> final_ids() const;
  /// By vocabulary id - 1.
  std::vector<int64_t> sorted_counts() const;
  /// Of the tokens in order of id.
  uint64_t digest() const;
  /// id, token, count in order of id.
  void write(const Location& file) const;

 private:
  std::vector<int64_t> order() const;  // provisional ids - 1, by vocabulary id - 1
  TokenTable tokens_;
  std::vector<int64_t> counts_;
};

}  // namespace tautline::data
