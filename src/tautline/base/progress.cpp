#include "tautline/base/progress.h"

#include <algorithm>
#include <chrono>
#include <sys/ioctl.h>
#include <unistd.h>

namespace tautline {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string clock_text(double seconds) {
  const auto total = static_cast<int64_t>(seconds + 0.5);
  char text[48];
  if (total >= 3600)
    std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", total / 3600, total / 60 % 60, total % 60);
  else
    std::snprintf(text, sizeof text, "%ld:%02ld", total / 60, total % 60);
  return text;
}

size_t columns_of(std::FILE* out) {
  winsize size{};
  if (ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 20) return size.ws_col;
  return 100;
}

}  // namespace

bool shows_bar(std::FILE* out, bool plain) { return !plain && isatty(fileno(out)) == 1; }

std::string progress_text(const std::string& title, int64_t done, int64_t total,
                          double seconds_elapsed, const std::string& detail, size_t columns) {
  std::string text = title;
  if (total > 0) {
    const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0., 1.);
    const size_t width = 20, full = static_cast<size_t>(share * width);
    text += "  [" + std::string(full, '=') + (full < width ? ">" : "") +
            std::string(full < width ? width - full - 1 : 0, ' ') + "]  " + std::to_string(done) +
            "/" + std::to_string(total) + "  " + std::to_string(static_cast<int>(share * 100)) +
            " %";
    if (done > 0 && done < total)
      text += "  " + clock_text(seconds_elapsed / share * (1 - share)) + " left";
    else
      text += "  " + clock_text(seconds_elapsed);
  } else {
    text += "  " + std::to_string(done) + "  " + clock_text(seconds_elapsed);
  }
  if (!detail.empty()) text += "  " + detail;
  return text.size() > columns ? text.substr(0, columns) : text;
}

Progress::Progress(Options options)
    : options_(std::move(options)), started_(seconds_now()), drawn_(started_) {
  if (!options_.out) options_.out = stderr;
}

Progress::~Progress() { clear(); }

void Progress::update(int64_t done, const std::string& detail) {
  done_ = done;
  if (options_.quiet || finished_) return;
  const double between =
      options_.bar ? options_.seconds_between_bars : options_.seconds_between_lines;
  if (seconds_now() - drawn_ < between) return;
  draw(detail, false);
}

void Progress::clear() {
  if (!bar_on_screen_) return;
  std::fputs("\r\x1b[K", options_.out);
  std::fflush(options_.out);
  bar_on_screen_ = false;
}

void Progress::finish(const std::string& detail) {
  if (options_.quiet || finished_) return;
  draw(detail, true);
  finished_ = true;
}

void Progress::draw(const std::string& detail, bool last) {
  drawn_ = seconds_now();
  const size_t columns = options_.bar ? columns_of(options_.out) - 1 : 1000;
  std::string text =
      progress_text(options_.title, done_, options_.total, drawn_ - started_, detail, columns);
  if (options_.bar) text = "\r" + text + "\x1b[K";
  if (!options_.bar || last) text += "\n";
  std::fwrite(text.data(), 1, text.size(), options_.out);
  std::fflush(options_.out);
  bar_on_screen_ = options_.bar && !last;
}

}  // namespace tautline
