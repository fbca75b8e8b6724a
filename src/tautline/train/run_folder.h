// The folder of a run: which, where its checkpoints lie, and that no other run writes there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tautline/base/folder_lock.h"
#include "tautline/train/checkpoint/checkpoint_reader.h"
#include "tautline/train/run.h"

namespace tautline::train {

struct RunFolder {
  std::string path;
  std::string checkpoints;        // folder or URI
  std::vector<FolderLock> locks;  // of both, where they are local
};

struct RunFolderRequest {
  const RunConfig& run;
  std::string name;  // of the run: names the folder where run.run_dir is empty
  bool resume = false;
};

/// Rank 0 decides and makes the folder; its error is everyone's. Errors: it already holds checkpoints
/// where `resume` was not asked for, holds no run where it was, is a URI, or another run is writing
/// there.
std::shared_ptr<RunFolder> agree_on_run_folder(const RunFolderRequest& request, int rank,
                                               const Exchange& exchange);

}  // namespace tautline::train
