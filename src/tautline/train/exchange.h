// A text from every rank to every rank, over a communicator of the CPU: how the ranks agree on a
// run's folder, and how their checkpoint threads tell each other what became of their files.
#pragma once

#include "tautline/comm/communicator.h"
#include "tautline/train/checkpoint/checkpoint_reader.h"

namespace tautline::train {

/// The communicator must be one that nothing else uses at the same time.
Exchange exchange_over(comm::Communicator communicator);

}  // namespace tautline::train
