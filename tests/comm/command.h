// Runs a program to its end and keeps what it printed. Nothing that it started outlives the call.
#pragma once

#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

extern char** environ;

namespace tautline::comm {

struct Finished {
  int status = -1;     // exit status, or 128 + signal
  std::string output;  // standard output and error together
  double seconds = 0;
  bool timed_out = false;
};

/// A program under way, in a process group of its own.
class Command {
 public:
  explicit Command(std::vector<std::string> arguments, std::vector<std::string> variables = {})
      : begin_(std::chrono::steady_clock::now()) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    std::vector<char*> argv, envp;
    for (auto& argument : arguments) argv.push_back(argument.data());
    for (char** entry = environ; *entry != nullptr; ++entry) envp.push_back(*entry);
    for (auto& variable : variables) envp.push_back(variable.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    if (::posix_spawnp(&pid_, argv[0], &actions, &attributes, argv.data(), envp.data()) != 0)
      pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    ::close(ends[1]);
    read_ = ends[0];
    ::fcntl(read_, F_SETFL, O_NONBLOCK);
  }
  ~Command() { stop(); }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  pid_t pid() const { return pid_; }

  /// Waits until `text` was printed; false when the program ended or the time is over.
  bool wait_for(const std::string& text, double seconds = 60) {
    while (finished_.output.find(text) == std::string::npos)
      if (!proceed(seconds)) return false;
    return true;
  }
  Finished finish(double seconds = 90) {
    while (proceed(seconds)) {
    }
    stop();
    return finished_;
  }

 private:
  double elapsed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  // Reads what there is. False: ended, or out of time.
  bool proceed(double seconds) {
    if (pid_ < 0) return false;
    pollfd polled{read_, POLLIN, 0};
    ::poll(&polled, 1, 20);
    char buffer[4096];
    for (ssize_t n; (n = ::read(read_, buffer, sizeof buffer)) > 0;)
      finished_.output.append(buffer, static_cast<size_t>(n));
    int status = 0;
    if (!ended_ && ::waitpid(pid_, &status, WNOHANG) == pid_) {
      ended_ = true;
      finished_.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      finished_.seconds = elapsed();
      return true;  // once more, for the rest of its output
    }
    if (ended_) return false;
    finished_.timed_out = elapsed() > seconds;
    return !finished_.timed_out;
  }
  void stop() {
    if (pid_ < 0) return;
    ::kill(-pid_, SIGKILL);  // the whole group
    if (!ended_) ::waitpid(pid_, nullptr, 0);
    ::close(read_);
    pid_ = -1;
  }

  std::chrono::steady_clock::time_point begin_;
  pid_t pid_ = -1;
  int read_ = -1;
  bool ended_ = false;
  Finished finished_;
};

inline Finished run_command(std::vector<std::string> arguments, double seconds = 90) {
  return Command(std::move(arguments)).finish(seconds);
}

/// The path of a program, or empty.
inline std::string find_program(const std::string& name,
                                const std::vector<std::string>& extra = {}) {
  std::vector<std::string> folders = extra;
  for (const char* folder : {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"})
    folders.push_back(folder);
  for (const std::string& folder : folders)
    if (::access((folder + "/" + name).c_str(), X_OK) == 0) return folder + "/" + name;
  return "";
}

/// A folder that goes away with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tautline-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace tautline::comm
