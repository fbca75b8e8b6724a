// Upper bounds of a config's numbers: what no machine holds, and where sums of them overflow.
#pragma once

#include <cstdint>
#include <string>

#include "tautline/base/config.h"

namespace tautline {

/// Errors: more than `most`, with where it stands and the bound.
inline void check_at_most(const Provenance& at, const std::string& path, int64_t value,
                          int64_t most) {
  if (value > most)
    throw user_error(at(path), path, " must be ", print_integer(most), " at most, found ",
                     print_integer(value));
}

}  // namespace tautline
