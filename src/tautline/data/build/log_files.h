// Which files a log is: one, or those of a folder.
#pragma once

#include <cstdint>
#include <vector>

#include "tautline/data/uri.h"

namespace tautline::data {

/// A file alone, or all files in a folder and its folders, sorted by path; names that begin with
/// '.' or '_' are left out, nothing else is: links are followed, and one that leads nowhere or back
/// to a folder above it, a pipe, a socket or a device is an error (UserError). So is a folder
/// without files.
std::vector<Location> log_files(const Location& log);

int64_t file_size(const Location& file);

}  // namespace tautline::data
