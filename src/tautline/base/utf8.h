// Text that goes into YAML, JSON and messages must be UTF-8; names of files need not be.
#pragma once

#include <cstddef>
#include <string_view>

namespace tautline {

/// Bytes of the character that the text begins with; 0: none. RFC 3629: no overlong forms, no
/// surrogates, nothing above U+10FFFF.
size_t utf8_length(std::string_view text);
bool is_utf8(std::string_view text);

}  // namespace tautline
