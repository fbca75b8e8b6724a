#include "tautline/base/excerpt.h"

#include <cstdint>
#include <cstdio>

namespace tautline {
namespace {

constexpr size_t kMostNames = 40;

/// Bytes of the character that the text begins with; 0: none that may stand in a message.
size_t printable(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t length = first >= 0xc2 && first <= 0xdf   ? 2
                        : first >= 0xe0 && first <= 0xef ? 3
                        : first >= 0xf0 && first <= 0xf4 ? 4
                                                         : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const uint8_t second = byte(1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool beyond = (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);
  const bool control = first == 0xc2 && second < 0xa0;
  return overlong || beyond || control ? 0 : length;
}

void escape(char c, std::string& out) {
  if (c == '\n') {
    out += "\\n";
  } else if (c == '\r') {
    out += "\\r";
  } else if (c == '\t') {
    out += "\\t";
  } else {
    char hexadecimal[8];
    std::snprintf(hexadecimal, sizeof hexadecimal, "\\x%02x", static_cast<uint8_t>(c));
    out += hexadecimal;
  }
}

}  // namespace

std::string excerpt(std::string_view text, size_t most) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t length = printable(text.substr(i));
    if (text.size() > most && i + (length ? length : 1) > most)
      return out + "... (" + std::to_string(text.size()) + " bytes)";
    if (length == 0)
      escape(text[i++], out);
    else
      out += text.substr(i, length), i += length;
  }
  return out;
}

std::string excerpts(const std::vector<std::string>& texts) {
  std::string out;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i == kMostNames) return out + " and " + std::to_string(texts.size() - i) + " more";
    if (i > 0) out += ", ";
    out += excerpt(texts[i]);
  }
  return out;
}

}  // namespace tautline
