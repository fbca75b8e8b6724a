// A Timeline for ui.perfetto.dev (and chrome://tracing): the Chrome JSON trace format. One process
// a rank, one thread a stream, and an arrow from the rank that came last to a collective to those
// that waited for it.
#pragma once

#include <string>

#include "tautline/timeline/timeline.h"

namespace tautline {

/// Errors: a file that cannot be written.
void write_perfetto(const Timeline& timeline, const std::string& path);

}  // namespace tautline
