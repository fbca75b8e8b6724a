// A temporary folder that goes when the test ends, and Python from the pinned environment inside
// it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/wait.h>

namespace tautline {

class Scratch {
 public:
  explicit Scratch(const std::filesystem::path& base = std::filesystem::temp_directory_path()) {
    std::string name = (base / "tautline-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    folder_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& path() const { return folder_; }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

 private:
  std::string folder_;
};

/// Runs `code` in the scratch folder; the exit status, -1 if it did not exit.
inline int python_in(const Scratch& scratch, const std::string& code) {
  std::ofstream(scratch.path("code.py")) << code;
  const std::string command = "cd '" + scratch.path() +
                              "' && \"$('" TAUTLINE_SOURCE_DIR
                              "/scripts/environment')/bin/python\" -B code.py >code.log 2>&1";
  const int status = std::system(command.c_str());
  const int code_of_exit = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code_of_exit != 0) std::system(("cat '" + scratch.path("code.log") + "' >&2").c_str());
  return code_of_exit;
}

}  // namespace tautline
