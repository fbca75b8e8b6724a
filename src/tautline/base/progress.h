// How far a long job is: a bar that redraws itself on a terminal, and plain lines, a few a minute,
// in a file or a log.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace tautline {

/// A bar is for people at a terminal. `plain`: they asked for no colours and no redrawing
/// (NO_COLOR); only comm/launch.cpp reads the environment.
bool shows_bar(std::FILE* out, bool plain);

/// "train  [=====>    ]  512/1000  51 %  0:42 left  loss 5.21", cut to `columns`. total 0: unknown.
std::string progress_text(const std::string& title, int64_t done, int64_t total,
                          double seconds_elapsed, const std::string& detail, size_t columns);

class Progress {
 public:
  struct Options {
    std::string title;
    int64_t total = 0;  // 0: unknown
    bool bar = false;
    double seconds_between_bars = 0.1;
    double seconds_between_lines = 10;
    bool quiet = false;        // ranks other than 0
    std::FILE* out = nullptr;  // null: standard error
  };
  explicit Progress(Options options);
  /// Ends the line if finish() did not.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `detail`: what changes besides the count, such as "loss 5.21  12.3k tokens/s".
  void update(int64_t done, const std::string& detail = "");
  /// Removes the bar so that another line can be printed; the next update draws it anew.
  void clear();
  void finish(const std::string& detail = "");

 private:
  void draw(const std::string& detail, bool last);

  Options options_;
  double started_, drawn_;
  int64_t done_ = 0;
  bool bar_on_screen_ = false, finished_ = false;
};

}  // namespace tautline
