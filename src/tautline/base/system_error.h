// Exceptions of the standard library that tell of the machine and not of a mistake of ours: no memory,
// no threads, a path that cannot be looked at. They are the user's errors.
#pragma once

#include <exception>
#include <optional>
#include <string>

namespace tautline {

/// The sentence for such an exception; null for any other.
std::optional<std::string> machine_sentence(const std::exception& error);

}  // namespace tautline
