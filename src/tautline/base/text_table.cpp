#include "tautline/base/text_table.h"

#include <algorithm>

#include "tautline/base/error.h"

namespace tautline {

TextTable::TextTable(std::vector<std::string> headers) : headers_(std::move(headers)) {
  for (std::string& header : headers_) {
    right_.push_back(header.starts_with('>'));
    if (right_.back()) header.erase(0, 1);
  }
}

void TextTable::add(std::vector<std::string> cells) {
  TAUTLINE_INVARIANT(cells.size() <= headers_.size(),
                     cells.size() << " cells, " << headers_.size() << " columns");
  cells.resize(headers_.size());
  rows_.push_back(std::move(cells));
}

std::string TextTable::str() const {
  std::vector<size_t> width;
  for (const std::string& header : headers_) width.push_back(text_width(header));
  for (const auto& row : rows_)
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], text_width(row[i]));

  std::string out;
  auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string gap(width[i] - text_width(cells[i]), ' ');
      text += (i ? "  " : "") + (right_[i] ? gap + cells[i] : cells[i] + gap);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line(headers_);
  std::vector<std::string> rule;
  for (const size_t w : width) rule.emplace_back(w, '-');
  line(rule);
  for (const auto& row : rows_) line(row);
  return out;
}

size_t text_width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // not a continuation byte
  }));
}

}  // namespace tautline
