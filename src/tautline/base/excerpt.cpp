#include "tautline/base/excerpt.h"

#include <cstdint>
#include <cstdio>

#include "tautline/base/utf8.h"

namespace tautline {
namespace {

constexpr size_t kMostNames = 40;

/// Bytes of the character that the text begins with; 0: none that may stand in a message.
size_t printable(std::string_view text) {
  const size_t length = utf8_length(text);
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const bool control = length == 1   ? byte(0) < 0x20 || byte(0) == 0x7f
                       : length == 2 ? byte(0) == 0xc2 && byte(1) < 0xa0
                                     : false;
  return control ? 0 : length;
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
