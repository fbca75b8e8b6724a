// Somebody's text inside a sentence: its beginning where it is long.
#pragma once

#include <string>

namespace tautline {

/// UTF-8 stays UTF-8.
inline std::string shortened(const std::string& text) {
  constexpr size_t kLongest = 160, kShown = 100;
  if (text.size() <= kLongest) return text;
  size_t end = kShown;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

}  // namespace tautline
