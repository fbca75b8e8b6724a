#include "tautline/base/utf8.h"

#include <cstdint>

namespace tautline {
namespace {

/// Bytes of the character that begins with `lead`, 0 where none does; its lowest code point.
size_t length_of(unsigned char lead, uint32_t& lowest) {
  if (lead < 0x80) return lowest = 0, 1;
  if (lead >= 0xC2 && lead < 0xE0) return lowest = 0x80, 2;
  if (lead >= 0xE0 && lead < 0xF0) return lowest = 0x800, 3;
  if (lead >= 0xF0 && lead < 0xF5) return lowest = 0x10000, 4;
  return 0;
}

}  // namespace

size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  uint32_t lowest = 0;
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = length_of(lead, lowest);
  if (text.size() < length) return 0;
  uint32_t code = length == 1 ? lead : lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0) != 0x80) return 0;
    code = code << 6 | (next & 0x3F);
  }
  return code < lowest || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000) ? 0 : length;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace tautline
