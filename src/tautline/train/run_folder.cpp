#include "tautline/train/run_folder.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <filesystem>

#include "tautline/base/error.h"
#include "tautline/data/uri.h"
#include "tautline/train/checkpoint/checkpoint.h"

namespace tautline::train {
namespace {

namespace fs = std::filesystem;

constexpr double kEndingSeconds = 5;  // what is left of a run that was killed may still be ending

std::string date_and_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &local);
  return text;
}

/// runs/NAME-DATE anew, or the latest of that name to go on with.
std::string default_run_dir(const std::string& name, bool resume) {
  std::string latest;
  std::error_code error;
  const std::string anew = name + "-" + date_and_time();
  if (resume) {
    for (const auto& entry : fs::directory_iterator("runs", error)) {
      const std::string folder = entry.path().filename().string();
      // Of 'log', not of 'log-large'; -2 and so on where two began in one second.
      const bool ends = folder.size() == anew.size() ||
                        (folder.size() > anew.size() && folder[anew.size()] == '-');
      if (folder.starts_with(name + "-") && ends && std::isdigit(folder[name.size() + 1])) {
        latest = std::max(latest, entry.path().string());
      }
    }
    if (latest.empty()) {
      throw user_error("there is no run of '", name, "' under runs/ to resume; give --run-dir");
    }
    return latest;
  }
  fs::create_directories("runs", error);
  std::string path = "runs/" + anew;
  for (int number = 2; !fs::create_directory(path, error) && !error; ++number)
    path = "runs/" + anew + "-" + std::to_string(number);
  return path;  // what keeps it from being made is told where files are written
}

void make_folder(const std::string& what, const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw user_error(what, path, " cannot be made: ", error.message());
}

std::string checkpoints_of(const RunFolderRequest& request, const std::string& path) {
  const std::string& apart = request.run.checkpoint.folder;
  return apart.empty() ? path + "/checkpoints" : apart;
}

/// Local folders that the run writes, and what they are to its user. That of the checkpoints is locked
/// too: another run may have been told to put its own there.
std::vector<std::pair<std::string, std::string>> local_folders(const RunFolderRequest& request,
                                                               const std::string& path) {
  const std::string& apart = request.run.checkpoint.folder;
  std::vector<std::pair<std::string, std::string>> out = {{"the run's folder ", path}};
  const data::Location checkpoints = data::open_filesystem(checkpoints_of(request, path));
  std::error_code ignored;
  if (checkpoints.local &&
      fs::weakly_canonical(checkpoints.path, ignored) != fs::weakly_canonical(path, ignored))
    out.emplace_back(apart.empty() ? "the folder of checkpoints " : "checkpoint.folder: ",
                     checkpoints.path);
  return out;
}

/// Rank 0's: the folder, and locks that the other ranks may share.
RunFolder take(const RunFolderRequest& request) {
  const RunConfig& run = request.run;
  RunFolder folder;
  folder.path = run.run_dir.empty() ? default_run_dir(request.name, request.resume) : run.run_dir;
  if (data::is_uri(folder.path)) {
    throw user_error("the run's folder ", folder.path,
                     " is a URI, and reports and metrics are written to a disk; give a path, and "
                     "the URI as checkpoint.folder");
  }
  folder.checkpoints = checkpoints_of(request, folder.path);
  const auto storage = open_storage(folder.checkpoints);
  // One that was killed before its first checkpoint has left its run.yaml: it starts anew.
  std::error_code unseen;  // a path that is too long, say, is told where it is made
  if (request.resume && !fs::exists(folder.path + "/run.yaml", unseen) &&
      list_checkpoints(*storage).empty()) {
    throw user_error("--resume: ", folder.path,
                     fs::exists(folder.path, unseen) ? " holds no run" : " is not there",
                     ", so there is nothing to go on with; give the folder of a run with "
                     "--run-dir, or begin one without --resume");
  }
  for (const auto& [what, path] : local_folders(request, folder.path)) {
    if (fs::exists(path + "/workload.yaml", unseen))
      throw user_error(what, path, " is a built log; a run's files would lie among its own");
    make_folder(what, path);
    folder.locks.push_back(FolderLock::exclusive(path, what + path, kEndingSeconds));
  }
  const auto steps = list_checkpoints(*storage);
  if (!request.resume && !steps.empty()) {
    const bool apart = !run.checkpoint.folder.empty();
    throw user_error(apart ? "checkpoint.folder: " : "the run's folder ",
                     apart ? run.checkpoint.folder : folder.path,
                     " already holds checkpoints up to step ", steps.back(),
                     "; go on with --resume, or give another ", apart ? "folder" : "--run-dir");
  }
  for (FolderLock& lock : folder.locks) lock.share();
  return folder;
}

}  // namespace

std::shared_ptr<RunFolder> agree_on_run_folder(const RunFolderRequest& request, int rank,
                                               const Exchange& exchange) {
  auto folder = std::make_shared<RunFolder>();
  std::string mine;
  if (rank == 0) {
    try {
      *folder = take(request);
      mine = "+" + folder->path;
    } catch (const UserError& error) {
      mine = std::string("-") + error.what();
    }
  }
  const std::string agreed = exchange(mine).front();
  if (agreed.starts_with("-")) throw UserError(agreed.substr(1));
  if (rank == 0) return folder;
  folder->path = agreed.substr(1);
  folder->checkpoints = checkpoints_of(request, folder->path);
  for (const auto& [what, path] : local_folders(request, folder->path))
    folder->locks.push_back(FolderLock::shared(path));
  return folder;
}

}  // namespace tautline::train
