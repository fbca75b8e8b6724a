// What a message quotes of what others wrote: a field or line of a log, a column's name, a path.
// Never so much that the sentence drowns in it, and nothing that breaks the line or that a terminal
// obeys.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tautline {

inline constexpr size_t kExcerptBytes = 60;
inline constexpr size_t kConfigBytes = 160;  // of a config's keys and values, which may be paths

/// The text with control characters and what is not UTF-8 written as \n, \t, \r, \x1b; of more than
/// `most` bytes only the first, and how many there are: "aaaa... (300000 bytes)".
std::string excerpt(std::string_view text, size_t most = kExcerptBytes);

/// "a, b, c": an excerpt of each; of many the first, and how many follow: "a, b and 998 more".
std::string excerpts(const std::vector<std::string>& texts);

}  // namespace tautline
