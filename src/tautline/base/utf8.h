// Text that goes into YAML and JSON must be UTF-8; names of files need not be.
#pragma once

#include <string_view>

namespace tautline {

/// RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

}  // namespace tautline
