#include "tautline/base/system_error.h"

#include <filesystem>
#include <new>
#include <system_error>

namespace tautline {

std::optional<std::string> machine_sentence(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return "there is not enough memory for this: what the config asks for is too large for this "
           "machine, or for the limit that it runs under";
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error))
    return "cannot look at " +
           (file->path1().empty() ? "the current folder" : file->path1().string()) + ": " +
           file->code().message();
  if (const auto* system = dynamic_cast<const std::system_error*>(&error))
    return "the system refuses what this run needs (more threads, or files): " +
           system->code().message();
  return std::nullopt;
}

}  // namespace tautline
