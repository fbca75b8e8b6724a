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
  /// Lines that end with newlines. No trailing spaces.
  std::string str() const;
  bool empty() const { return rows_.empty(); }

 private:
  std::vector<std::string> headers_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

/// Columns that UTF-8 text takes (one a code point).
size_t text_width(const std::string& text);

}  // namespace tautline
