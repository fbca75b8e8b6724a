// A local S3 server (moto, from the pinned environment) for the time of a test program.
#pragma once

#include <cstdio>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace tautline::data::testing_s3 {

class S3Server {
 public:
  S3Server() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    output_ = ends[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
    std::string python = environment() + "/bin/python", module = "moto.server";
    // Unbuffered, so that the line with its port comes at once; port 0: any that is free.
    std::string u = "-u", m = "-m", host = "-H", loopback = "127.0.0.1", port = "-p", any = "0";
    char* arguments[] = {python.data(),   u.data(),    m.data(),   module.data(), host.data(),
                         loopback.data(), port.data(), any.data(), nullptr};
    const int failed = posix_spawn(&pid_, python.c_str(), &actions, nullptr, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failed) throw std::runtime_error("cannot start " + python);
    read_port();
  }
  ~S3Server() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(output_);
  }
  S3Server(const S3Server&) = delete;
  S3Server& operator=(const S3Server&) = delete;

  /// s3://key:secret@PATH?... of this server. The first part of the path is a bucket, made if need
  /// be.
  std::string uri(const std::string& path) const {
    return "s3://key:secret@" + path + "?scheme=http&region=us-east-1&allow_bucket_creation=true" +
           "&endpoint_override=127.0.0.1:" + port_;
  }

 private:
  static std::string environment() {
    std::FILE* out = popen(TAUTLINE_SOURCE_DIR "/scripts/environment", "r");
    if (!out) throw std::runtime_error("scripts/environment");
    char line[4096] = "";
    if (!std::fgets(line, sizeof line, out)) line[0] = 0;
    pclose(out);
    std::string path = line;
    while (!path.empty() && path.back() == '\n') path.pop_back();
    return path;
  }

  void read_port() {
    std::string text;
    const std::string before = "Running on http://127.0.0.1:";
    for (int tenths = 0; tenths < 1200; ++tenths) {
      pollfd ready{output_, POLLIN, 0};
      if (poll(&ready, 1, 100) <= 0) continue;
      char block[512];
      const ssize_t got = read(output_, block, sizeof block);
      if (got <= 0) break;
      text.append(block, static_cast<size_t>(got));
      const size_t at = text.find(before);
      if (at == text.npos) continue;
      const size_t end = text.find_first_not_of("0123456789", at + before.size());
      if (end == text.npos) continue;
      port_ = text.substr(at + before.size(), end - at - before.size());
      // Nobody reads its log: it must not block on a full pipe.
      fcntl(output_, F_SETPIPE_SZ, 1 << 20);
      return;
    }
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    throw std::runtime_error("the S3 server did not start: " + text);
  }

  pid_t pid_ = 0;
  int output_ = -1;
  std::string port_;
};

}  // namespace tautline::data::testing_s3
