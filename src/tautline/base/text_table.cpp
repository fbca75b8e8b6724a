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
  std::vector<std::vector<std::string>> rows;
  for (const auto& row : rows_) {
    const auto parts = limit_ == 0 ? std::vector{row.back()} : wrapped(row.back(), last_width());
    rows.push_back(row);
    rows.back().back() = parts.front();
    for (size_t i = 1; i < parts.size(); ++i) {
      rows.emplace_back(headers_.size());
      rows.back().back() = parts[i];
    }
  }
  for (const auto& row : rows)
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
  for (const auto& row : rows) line(row);
  return out;
}

size_t TextTable::last_width() const {
  constexpr size_t kLeast = 40;  // narrower is no prose any more
  size_t before = 0;
  for (size_t i = 0; i + 1 < headers_.size(); ++i) {
    size_t width = text_width(headers_[i]);
    for (const auto& row : rows_) width = std::max(width, text_width(row[i]));
    before += width + 2;
  }
  return limit_ > before + kLeast ? limit_ - before : kLeast;
}

std::vector<std::string> wrapped(const std::string& text, size_t columns) {
  std::vector<std::string> lines;
  for (size_t from = 0; from <= text.size();) {
    const size_t end = std::min(text.find(' ', from), text.size());
    const std::string word = text.substr(from, end - from);
    if (!lines.empty() && text_width(lines.back()) + 1 + text_width(word) <= columns)
      lines.back() += " " + word;
    else
      lines.push_back(word);
    from = end + 1;
  }
  return lines;
}

size_t text_width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // not a continuation byte
  }));
}

}  // namespace tautline
