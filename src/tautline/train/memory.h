// Memory that is not there is the user's error: said before anything is allocated where it can be
// reckoned, else when an allocation fails.
#pragma once

#include <exception>
#include <optional>
#include <string>

#include "tautline/train/job.h"

namespace tautline::train {

/// Errors: dense parameters that with their gradients and AdamW's moments (16 bytes each, a copy on
/// every rank) do not fit the memory that a rank has, where that is known.
void check_dense_memory(const Job& job, int ranks);

/// The sentence for an exception that says that memory, threads or a path fail this process
/// (libtorch's and the standard library's); null for any other.
std::optional<std::string> machine_sentence(const std::exception& error);

}  // namespace tautline::train
