// Ranks as threads of one process, each with a Gloo communicator of its own: tests of everything
// that communicates, without starting programs.
#pragma once

#include <functional>

#include "tautline/comm/communicator.h"

namespace tautline::comm {

/// Runs `body` once for each rank, at the same time. Rethrows what the lowest failing rank threw,
/// after all have ended. A rank that throws while others wait for it would leave them waiting: let
/// all throw, or none.
void run_rank_threads(int world, const std::function<void(Communicator)>& body);

}  // namespace tautline::comm
