// What a checkpoint was made with, and what of it a run that goes on may change.
//
// The checkpoint's manifest keeps the run, the model and the log's figures as text, so that a run
// that resumes can name what differs: another log or another shape of the model is refused; what a
// step computes otherwise from now on (batch, learning rates, dropout, ...) is allowed and told.
#pragma once

#include <string>
#include <vector>

#include "tautline/train/checkpoint/checkpoint.h"
#include "tautline/train/job.h"

namespace tautline::train {

void keep_origin(const Job& job, Manifest& manifest);

/// One sentence for each thing that a step does otherwise: "resumed with batch 256, the checkpoint
/// was written with 128". Errors: another seed, log or model, with what differs.
std::vector<std::string> compare_origin(const Job& job, const Manifest& manifest);

/// Where the run goes on. With another batch the epoch has other steps: the first that has a sample
/// which is still to come in this epoch.
data::Cursor resumed_cursor(const Job& job, const Manifest& manifest);

}  // namespace tautline::train
