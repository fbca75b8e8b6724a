// A table of text for terminals: columns aligned, numbers to the right.
#pragma once

#include <string>
#include <vector>

namespace tautline {

class TextTable {
 public:
  /// A header that starts with '>' is of a column aligned to the right: {"table", ">rows"}.
  explicit TextTable(std::vector<std::string> headers);
  /// One row; cells that are missing at its end stay empty.
  void add(std::vector<std::string> cells);
  /// The last column is wrapped at spaces where the table would be wider than `columns`.
  void wrap(size_t columns) { limit_ = columns; }
  /// Lines that end with newlines. No trailing spaces.
  std::string str() const;
  bool empty() const { return rows_.empty(); }

 private:
  size_t last_width() const;  // of the last column, where the table wraps

  std::vector<std::string> headers_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
  size_t limit_ = 0;  // 0: no wrapping
};

/// Lines of at most `columns`, cut at spaces; a longer word stays whole.
std::vector<std::string> wrapped(const std::string& text, size_t columns);

/// Columns that UTF-8 text takes (one a code point).
size_t text_width(const std::string& text);

}  // namespace tautline
