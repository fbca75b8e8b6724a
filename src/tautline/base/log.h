// What the program says on the way, to standard error: one line a message, written at once, so that
// the lines of several ranks do not mix. A Logger is a plain value that is handed down; there is no
// global one.
//
//   Logger log({.rank = 2, .world = 4});
//   log.info("epoch ", 3);   // epoch 3 (from rank 0 only, unless `ranks` says otherwise)
//   log.warning("codec ", name, " is off: ...");   // [rank 2] warning: codec ...
#pragma once

#include <cstdio>
#include <set>
#include <sstream>
#include <string>

namespace tautline {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kNone };

struct LogOptions {
  LogLevel least = LogLevel::kInfo;
  int rank = 0, world = 1;
  std::set<int> ranks = {0};  // whose debug and info lines are shown; warnings are from every rank
  std::FILE* out = nullptr;   // null: standard error
};

class Logger {
 public:
  explicit Logger(LogOptions options = {}) : options_(std::move(options)) {}

  template <class... Parts>
  void debug(const Parts&... parts) const {
    say(LogLevel::kDebug, parts...);
  }
  template <class... Parts>
  void info(const Parts&... parts) const {
    say(LogLevel::kInfo, parts...);
  }
  template <class... Parts>
  void warning(const Parts&... parts) const {
    say(LogLevel::kWarning, parts...);
  }
  template <class... Parts>
  void error(const Parts&... parts) const {
    say(LogLevel::kError, parts...);
  }

  bool shows(LogLevel level) const;
  const LogOptions& options() const { return options_; }

 private:
  template <class... Parts>
  void say(LogLevel level, const Parts&... parts) const {
    if (!shows(level)) return;
    std::ostringstream text;
    (text << ... << parts);
    write(level, text.str());
  }
  void write(LogLevel level, const std::string& text) const;

  LogOptions options_;
};

}  // namespace tautline
